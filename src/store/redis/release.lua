-- Lets go of a lock that is ours or was granted to us, writes down the run that has ended, and leaves the queue. A lock that
-- becomes free goes to the first waiter.
--
-- ARGV  1 token     of the acquisition
--       2 ending    JSON {status} or {signal} or {}; empty: there was no run, write nothing down
--       3 doubt     1: a request for the lock under this token may still be on its way; it must not get it
-- Reply {granted, told}  tokens of waiters, or '' (see settle)

local TOKEN, ENDING, DOUBT = ARGV[1], ARGV[2], ARGV[3] == '1'

local ended = drop_ended_leases()

local info = info_of(TOKEN)
local held = redis.call('ZREM', HOLDERS, TOKEN) == 1
redis.call('HDEL', INFO, TOKEN)
forget_waiter(TOKEN)
if DOUBT then
  redis.call('RPUSH', BOX .. TOKEN, WITHDRAWN)
  redis.call('PEXPIRE', BOX .. TOKEN, WITHDRAWN_TTL)
end
-- A run that has lost its lock is noted too: that its command is dead is what a careful waiter wants to hear.
if ENDING ~= '' then
  local last = cjson.decode(ENDING)
  last.who, last.started, last.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(last))
end
local handed = (held or ended > 0 or ENDING ~= '') and hand_over() or {}
expire_keys()
return {handed[1] or '', handed[2] or ''}
