-- Reports what is known of the key. By itself it changes nothing; after a failover, `failover.lua` begins the new term first.
--
-- Reply {now, fence, holders, waiters, last, value, withheld}
--       now: in ms; fence: as text; holders: {{held for, expires in or -1, info, token}, ...};
--       waiters: JSON of the info of each, in order; last: JSON, or '';
--       value: the last value of the sequence, or ''; withheld: for how many ms nothing is granted yet

local fence = redis.call('GET', FENCE) or '0'
if not string.match(fence, '^%d+$') then
  error('the fence is no number')
end
local holders, queue = {}, {}
local held = redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf', 'WITHSCORES')
for at = 1, #held, 2 do
  local token, ends = held[at], held[at + 1]
  holders[#holders + 1] = describe(token, ends)
end
for _, token in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  if tonumber(redis.call('ZSCORE', PLACES, token) or 0) > now then
    queue[#queue + 1] = redis.call('HGET', INFO, token) or '{}'
  end
end
return {now, fence, holders, queue, redis.call('GET', LAST) or '',
  redis.call('HGET', SEQUENCE, 'last') or '', withheld}
