-- Looks whether a waiter to whom the lock was granted, and the one that was told to watch it, have taken their mail. Called by
-- the client whose script wrote it, after that script: only then does the server hand mails out.
--
-- A grantee that is not listening is given only GRACE to come back. A watcher that is not listening is passed by, and the
-- next ones are told: twice as many each time, so that many dead ones cost few calls.
--
-- ARGV  1 granted   token
--       2 told      tokens, separated by blanks; empty: none
-- Reply told        tokens of those that were told now, separated by blanks: call again; empty: settled

local GRANTED, TOLD = ARGV[1], ARGV[2]
-- A waiter that was heard of so recently is between two looks at its mailbox.
local FRESH = 100

local ends = redis.call('ZSCORE', HOLDERS, GRANTED)
if not ends or not redis.call('ZSCORE', QUEUE, GRANTED) then
  return ''
end
ends = tonumber(ends)
local heard_at = tonumber(redis.call('ZSCORE', ALIVE, GRANTED) or 0) - ALIVE_FOR
local deaf = deaf_since(GRANTED) and now - heard_at > FRESH
if deaf then
  ends = math.min(ends, now + GRACE)
  redis.call('ZADD', HOLDERS, whole(ends), GRANTED)
end

local told, listening = 0, false
for token in string.gmatch(TOLD, '%S+') do
  told = told + 1
  if deaf_since(token) then
    redis.call('LPUSH', BOX .. token, whole(now - GRACE) .. ' 0')
  elseif redis.call('ZSCORE', QUEUE, token) then
    redis.call('ZADD', ALIVE, whole(now + ALIVE_FOR), token)
    listening = true
  end
end
-- Somebody watches, or nobody is left to. Who watches was told to look when the grant would have ended if its grantee were
-- listening: if it is not, it is told again.
if told == 0 or (listening and not deaf) then
  return ''
end
local next_ones = waiters(listening and 1 or told * 2, GRANTED)
for _, token in ipairs(next_ones) do
  mail(token, ends - now + 1)
end
return listening and '' or table.concat(next_ones, ' ')
