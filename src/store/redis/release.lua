-- Lets go of a lock that is ours or was granted to us, writes down the run that has ended, and leaves the queue. A lock that
-- becomes free goes to the first waiter.
--
-- ARGV  1 token     of the acquisition
--       2 ending    JSON {status} or {signal} or {}; empty: there was no run, write nothing down
-- Reply {granted, told}  tokens of waiters, or '' (see settle)

local TOKEN, ENDING = ARGV[1], ARGV[2]

drop_ended_leases()

local info = info_of(TOKEN)
local held = redis.call('ZREM', HOLDERS, TOKEN) == 1
redis.call('HDEL', INFO, TOKEN)
forget_waiter(TOKEN)
if held and info.fence and ENDING ~= '' then
  local last = cjson.decode(ENDING)
  last.who, last.started, last.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(last))
end
local handed = held and hand_over() or {}
expire_keys()
return {handed[1] or '', handed[2] or ''}
