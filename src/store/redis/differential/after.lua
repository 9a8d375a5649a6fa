end

local is_done, reply = pcall(play)
if not is_done then
  return {'error', type(reply) == 'table' and reply.err or tostring(reply)}
end
local waiters = {}
for _, token in ipairs(server.call('ZRANGE', QUEUE, 0, -1)) do
  local oldest = server.call('LINDEX', MAILBOX .. token, 0)
  local written = oldest and tonumber(string.match(oldest, '^%d+'))
  if written and written < NOW then
    -- Not mail of this step, but the mark of a waiter that is passed over until it asks.
    server.call('SADD', SILENT, token)
  elseif written then
    server.call('DEL', MAILBOX .. token)
  end
  local alive = tonumber(server.call('ZSCORE', HEARTBEATS, token) or 0) > NOW
  waiters[#waiters + 1] = {token, alive and 1 or 0, written and NOW - written >= GRACE and 1 or 0}
end
return {'reply', reply, server.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES'), server.call('HGETALL', INFO),
  server.call('GET', FENCE) or '0', server.call('GET', LAST) or '', waiters, server.call('HGETALL', SEQUENCE)}
