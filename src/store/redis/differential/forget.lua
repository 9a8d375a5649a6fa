-- Loses the holders, but not the grants.
for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
  if not redis.call('ZSCORE', QUEUE, token) then
    redis.call('ZREM', HOLDERS, token)
    redis.call('HDEL', INFO, token)
  end
end
