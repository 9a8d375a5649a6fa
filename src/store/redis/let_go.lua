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
local ends = ends_of(TOKEN)
if not heir or #holders ~= 1 or not ends or ends <= now then
  return {0}
end
-- It must not count as dead before the grant is over.
if tonumber(redis.call('ZSCORE', ALIVE, heir) or 0) <= now + CLAIM_WINDOW or deaf_since(heir) then
  return {0}
end
let_pass_when_full()
-- In this order: the key of the holders is never gone, and so it still expires in time, if it ever would.
set_lease(heir, now + CLAIM_WINDOW)
redis.call('ZREM', HOLDERS, TOKEN)
if ends == math.huge then
  expire_holders()
end
post(heir, 'granted')
return {1, heir, now}
