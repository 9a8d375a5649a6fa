-- Checks whether the waiters that were granted the lock, and those that were notified to watch them, have read their mail.
-- Called by the client whose script wrote the mail, after that script: the server delivers mail only when a script has ended.
--
-- A waiter that was granted the lock and is not listening gets only GRACE to come back, and the next in the queue gets mail.
-- If that one is not listening either, the next ones get mail: twice as many each time, so that many dead ones cost few
-- calls. A waiter that is merely between two looks keeps its turn.
--
-- ARGV  1 granted   tokens, separated by blanks
--       2 notified  the same; empty: none
-- Reply {granted, notified}
--                   those to ask about in the next call, once they have been mailed; granted is empty: done

local GRANTED, NOTIFIED = ARGV[1], ARGV[2]

allow_when_full()

local notified, listening = 0, false
for token in string.gmatch(NOTIFIED, '%S+') do
  notified = notified + 1
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
        -- The waiters that watch the grant would look too late, and may be far away.
        set_lease(token, now + GRACE)
        notified, listening = 0.5, false
      end
    end
  end
end
if not pending or notified == 0 or listening then
  return {'', ''}
end
local next_ones = {}
for token in waiters() do
  if not unread_since(token) then
    next_ones[#next_ones + 1] = token
    mail(token, wait)
  end
  if #next_ones >= notified * 2 then
    break
  end
end
return {next_ones[1] and GRANTED or '', table.concat(next_ones, ' ')}
