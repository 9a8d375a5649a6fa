-- Looks whether a waiter to whom the lock was granted, and those that were told to watch it, have taken their mail. Called by
-- the client whose script wrote it, after that script: only then does the server hand mails out.
--
-- A grantee that is not listening is given only GRACE to come back, and the next in the queue is told. One that is not listening
-- either is passed by, and the next ones are told: twice as many each time, so that many dead ones cost few calls.
--
-- ARGV  1 granted   token
--       2 told      tokens, separated by blanks; empty: none
-- Reply told        tokens of those that were told now, separated by blanks: call again; empty: settled

local GRANTED, TOLD = ARGV[1], ARGV[2]

local ends = tonumber(redis.call('ZSCORE', HOLDERS, GRANTED) or 0)
if ends <= now or not redis.call('ZSCORE', QUEUE, GRANTED) then
  return ''
end

local told, listening = 0, false
for token in string.gmatch(TOLD, '%S+') do
  told = told + 1
  if deaf_since(token) then
    mark_absent(token)
    expect(token, 0)
  else
    listening = true
  end
end

local wait = FIRST_LOOK
if deaf_since(GRANTED) then
  wait = math.min(ends - now, GRACE) + 1
  if ends > now + GRACE then
    -- Those that watch it would look too late, and may be far away.
    redis.call('ZADD', HOLDERS, whole(now + GRACE), GRANTED)
    told, listening = 0.5, false
  end
end
if told == 0 or listening then
  return ''
end
local next_ones = waiters(told * 2, GRANTED)
for _, token in ipairs(next_ones) do
  mail(token, wait)
end
return table.concat(next_ones, ' ')
