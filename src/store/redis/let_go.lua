-- Lets go of a lock under which a command has run, and grants it to the first waiter: the quick way, for which others wait, and
-- no more than they wait for. The rest is done by the settle script, which follows.
--
-- ARGV  1 token     of the acquisition
-- Reply {1, granted, now}
--                   done: the token of the waiter, and when this was so
--       {0}         it is not that simple, and nothing was done: ask by the release script

local TOKEN = ARGV[1]

local heir = redis.call('ZRANGE', QUEUE, 0, 0)[1]
local holders = redis.call('ZRANGE', HOLDERS, 0, 1)
if not heir or #holders ~= 1 or not is_in_force(TOKEN) then
  return {0}
end
if tonumber(redis.call('ZSCORE', ALIVE, heir) or 0) <= now or deaf_since(heir) then
  return {0}
end
let_pass_when_full()
-- In this order: the key of the holders is never gone, and so it still expires in time.
set_lease(heir, now + CLAIM_WINDOW)
redis.call('ZREM', HOLDERS, TOKEN)
post(heir, 'granted')
return {1, heir, now}
