-- Lets go of a lock that is ours, and writes down the run that has ended.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms
--       2 info      hash: token -> JSON {since, fence, who}
--       3 last      JSON {who, started, ended, status or signal}; times in ms
-- ARGV  1 token     of the acquisition
--       2 ending    JSON {status} or {signal} or {}; empty: there was no run, write nothing down
-- Reply 1: it was ours, 0: it was not

local info = redis.call('HGET', KEYS[2], ARGV[1])
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('HDEL', KEYS[2], ARGV[1])
if info and ARGV[2] ~= '' then
  local time = redis.call('TIME')
  local held = cjson.decode(info)
  local last = cjson.decode(ARGV[2])
  last.who = held.who
  last.started = held.since
  last.ended = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('SET', KEYS[3], cjson.encode(last))
end
return 1
