-- Prolongs a lease that is still there. Never creates one.
--
-- ARGV  1 token     of the acquisition
--       2 ttl       of the lease from now, in ms; 0: it never expires
-- Reply {1}                                           it is ours
--       {0, {held for, expires in or -1, info} or {}} it is not; in ms

local TOKEN, TTL = ARGV[1], tonumber(ARGV[2])

local ends = redis.call('ZSCORE', HOLDERS, TOKEN)
if not ends or (ends ~= 'inf' and tonumber(ends) <= now) then
  return {0, holder()}
end
-- A server that is out of memory refuses ZADD as the first change of a script, though this one takes no more memory; a lease
-- must not be lost for that. After another change it lets it pass.
redis.call('PERSIST', HOLDERS)
redis.call('ZADD', HOLDERS, TTL == 0 and '+inf' or whole(now + TTL), TOKEN)
expire_keys()
return {1}
