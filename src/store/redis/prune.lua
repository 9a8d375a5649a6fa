-- Deletes the record of a lock that is free, without waiters, and unused for a while, unless a run of it is to be the only one for
-- longer. A lock with a sequence is never deleted: the sequence would begin anew.
--
-- ARGV  1 unused    for so long, in ms
--       2 really    1: delete it; 0: only check
-- Reply 1           it can be pruned
--       0           it cannot

local UNUSED, REALLY = tonumber(ARGV[1]), ARGV[2] == '1'

for _, key in ipairs({HOLDERS, PLACES}) do
  if redis.call('ZCOUNT', key, '(' .. whole(now), '+inf') > 0 then
    return 0
  end
end
-- After a failover nobody knows yet whether it is free.
if redis.call('HGET', SEQUENCE, 'last') or withheld > 0 then
  return 0
end
-- A fence is usually the time at which it was given out, and the lead over the clock. One that is further ahead must not be
-- deleted: the next one would be less. Nor may a lead that no epoch tells.
local last, fence = last_run(), tonumber(redis.call('GET', FENCE) or 0) or math.huge
fence = fence - epoch_lead
if fence > now or (tonumber(last.till) or 0) > now or now - (last.who and last.ended or fence) < UNUSED then
  return 0
end
if REALLY then
  redis.call('DEL', HOLDERS, INFO, FENCE, LAST, QUEUE, PLACES)
  -- In a cluster each lock has its own, under its hash tag.
  if FAILOVER and string.find(FAILOVER, '{', 1, true) then
    redis.call('DEL', FAILOVER)
  end
end
return 1
