-- Prolongs a lease that is still there. Never creates one.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms
--       2 info      hash: token -> JSON {since, fence, who}
-- ARGV  1 token     of the acquisition
--       2 ttl       of the lease from now, in ms; 0: it never expires
-- Reply {1, 0}                                 it is ours
--       {0, held for, expires in or -1, info}  it is somebody else's; in ms
--       {0}                                    it is nobody's

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends or (ends ~= 'inf' and tonumber(ends) <= now) then
  local other = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if not other[1] or (other[2] ~= 'inf' and tonumber(other[2]) <= now) then
    return {0}
  end
  local info = redis.call('HGET', KEYS[2], other[1]) or '{}'
  local since = cjson.decode(info).since or now
  local expires_in = -1
  if other[2] ~= 'inf' then
    expires_in = other[2] - now
  end
  return {0, now - since, expires_in, info}
end

local ttl = tonumber(ARGV[2])
if ttl == 0 then
  redis.call('ZADD', KEYS[1], '+inf', ARGV[1])
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
else
  local new_end = string.format('%.0f', now + ttl)
  redis.call('ZADD', KEYS[1], new_end, ARGV[1])
  redis.call('PEXPIREAT', KEYS[1], new_end)
  redis.call('PEXPIREAT', KEYS[2], new_end)
end
return {1, 0}
