end

local is_done, reply = pcall(play)
if not is_done then
  return {'error', type(reply) == 'table' and reply.err or tostring(reply)}
end
local places, mail = {}, {}
for _, token in ipairs(server.call('ZRANGE', QUEUE, 0, -1)) do
  places[#places + 1] = {token, server.call('ZSCORE', PLACES, token) or 'none'}
end
for _, mailbox in ipairs(server.call('KEYS', MAILBOX .. '*')) do
  for _, what in ipairs(server.call('LRANGE', mailbox, 0, -1)) do
    if what ~= 'cancelled' then
      mail[#mail + 1] = {string.sub(mailbox, #MAILBOX + 1), what}
      -- It is read before the next step.
      server.call('DEL', mailbox)
    end
  end
end
return {'reply', reply, server.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES'), server.call('HGETALL', INFO),
  server.call('GET', FENCE) or '0', server.call('GET', LAST) or '', places, server.call('HGETALL', SEQUENCE), mail}
