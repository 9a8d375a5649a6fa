-- Makes a waiter fall silent: it is stopped, cut off, or dead.
--
-- ARGV  2 token

local token = ARGV[2]
server.call('SADD', SILENT, token)
if not server.call('ZSCORE', HOLDERS, token) then
  server.call('ZADD', HEARTBEATS, number(NOW + LATE), token)
end
server.call('DEL', MAILBOX .. token)
server.call('LPUSH', MAILBOX .. token, number(NOW - GRACE) .. ' 0')
