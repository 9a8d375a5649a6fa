-- Looks whether waiters to whom the lock was granted, and those that have mail to watch it, have taken their mail. Called by
-- the client whose script wrote it, after that script: only then does the server hand mails out.
--
-- A grantee that is not listening is given only GRACE to come back, and the next in the queue gets mail. If that is not listening
-- either, the next ones get mail: twice as many each time, so that many dead ones cost few calls. Who is only between two looks
-- keeps its turn.
--
-- ARGV  1 granted   tokens, separated by blanks
--       2 told      the same; empty: none
-- Reply {granted, told}
--                   those to ask about in the next call, when they have had their mail; granted is empty: done

local GRANTED, TOLD = ARGV[1], ARGV[2]

local told, listening = 0, false
for token in string.gmatch(TOLD, '%S+') do
  told = told + 1
  listening = listening or not unread_since(token)
end

local pending, wait = false, FIRST_LOOK
for token in string.gmatch(GRANTED, '%S+') do
  if is_in_force(token) and redis.call('ZSCORE', QUEUE, token) then
    pending = true
    if unread_since(token) then
      local ends = ends_of(token)
      wait = math.min(wait, math.min(ends - now, GRACE) + 1)
      if ends > now + GRACE then
        -- Those that watch it would look too late, and may be far away.
        set_lease(token, now + GRACE)
        told, listening = 0.5, false
      end
    end
  end
end
if not pending or told == 0 or listening then
  return {'', ''}
end
local next_ones = {}
for token in waiters() do
  if not unread_since(token) then
    next_ones[#next_ones + 1] = token
    mail(token, wait)
  end
  if #next_ones >= told * 2 then
    break
  end
end
return {next_ones[1] and GRANTED or '', table.concat(next_ones, ' ')}
