-- Forgets the successful run because of which no other is wanted.
--
-- Reply 1  there was one
--       0  there was none

local last = last_run()
if not last.once then
  return 0
end
last.once, last.till = nil, nil
redis.call('SET', LAST, cjson.encode(last))
return 1
