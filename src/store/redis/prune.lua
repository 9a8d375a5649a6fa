-- Forgets the key, if it is free, nobody waits for it, it has not been used for a while, and no run of it was to be the only one for
-- longer. A sequence is never forgotten: it
-- would begin anew.
--
-- ARGV  1 unused    for so long, in ms
--       2 really    1: forget it; 0: only tell
-- Reply 1           it is one to forget
--       0           it is not

local UNUSED, REALLY = tonumber(ARGV[1]), ARGV[2] == '1'

-- Nobody knows yet whether it is free, after a failover.
local last_life = redis.call('ZREVRANGE', HEARTBEATS, 0, 0, 'WITHSCORES')[2] or 0
local last_lease = redis.call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2] or 0
for _, ends in ipairs({last_life, last_lease}) do
  if ends == 'inf' or tonumber(ends) > now then
    return 0
  end
end
if redis.call('HGET', SEQUENCE, 'last') or withheld > 0 then
  return 0
end
-- A fence is, as a rule, the time at which it was given out. One that is ahead of the clock must not be forgotten: what comes
-- after it would be less.
local last, fence = last_run(), tonumber(redis.call('GET', FENCE) or 0) or math.huge
fence = fence - FENCE_LEAD
if fence > now or (tonumber(last.till) or 0) > now or now - math.max(last.who and last.ended or fence, last.lost or 0) < UNUSED then
  return 0
end
if REALLY then
  redis.call('DEL', HOLDERS, INFO, FENCE, LAST, QUEUE, HEARTBEATS)
  -- In a cluster each lock has its own, under its hash tag.
  if FAILOVER and string.find(FAILOVER, '{', 1, true) then
    redis.call('DEL', FAILOVER)
  end
end
return 1
