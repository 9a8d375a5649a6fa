-- Takes a lock that is free. Asked again under the same token, answers as the first time.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms
--       2 info      hash: token -> JSON {since, fence, who}
--       3 fence     the last fencing token
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
-- Reply {1, fence}                             it is ours
--       {0, held for, expires in or -1, info}  it is somebody else's; in ms

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, token in ipairs(dead) do
  redis.call('ZREM', KEYS[1], token)
  redis.call('HDEL', KEYS[2], token)
end

local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local fence
if first[1] == ARGV[1] then
  fence = cjson.decode(redis.call('HGET', KEYS[2], ARGV[1])).fence
elseif first[1] then
  local info = redis.call('HGET', KEYS[2], first[1]) or '{}'
  local since = cjson.decode(info).since or now
  local expires_in = -1
  if first[2] ~= 'inf' then
    expires_in = first[2] - now
  end
  return {0, now - since, expires_in, info}
else
  -- Greater than the last one, and, should that be forgotten, than any that was given out before now.
  fence = math.max((tonumber(redis.call('GET', KEYS[3])) or 0) + 1, now)
  redis.call('SET', KEYS[3], string.format('%.0f', fence))
  local info = cjson.encode({since = now, fence = fence, who = cjson.decode(ARGV[3])})
  redis.call('HSET', KEYS[2], ARGV[1], info)
end

local ttl = tonumber(ARGV[2])
if ttl == 0 then
  redis.call('ZADD', KEYS[1], '+inf', ARGV[1])
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
else
  local ends = string.format('%.0f', now + ttl)
  redis.call('ZADD', KEYS[1], ends, ARGV[1])
  redis.call('PEXPIREAT', KEYS[1], ends)
  redis.call('PEXPIREAT', KEYS[2], ends)
end
return {1, fence}
