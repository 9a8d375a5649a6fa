-- Put in front of a script when a history plays it, with `after.lua` behind it. They replace the server's time by the
-- history's, and the processes that sleep at their mailboxes by the history's waiters.
--
-- ARGV, after those of the script
--       asks      the token of the waiter that asks for the lock in this step; empty: none
--       now       the history's time, in ms
-- Reply {'reply', the script's, holders, info, fence, last, waiters, sequence}
--                 waiters: {{token, 1 if it counts as alive, 1 if the others pass it over}, ...}
--       {'error', message}

local ASKS, NOW = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
local HOLDERS, INFO, FENCE, LAST, QUEUE, HEARTBEATS, MAILBOX, SEQUENCE = unpack(KEYS)
local GRACE, REFRESH, REFRESH_MAX, LATE = 500, 8000, 12000, 75000

-- Until when a key exists, by the history's time; and the waiters that do not listen.
local EXPIRES, SILENT = 'expires', 'silent'

local server = redis

local function number(value)
  return string.format('%.0f', value)
end

-- The server would expire keys by its own time.
local redis = {pcall = server.pcall, call = function(command, key, value, ...)
  if command == 'PEXPIRE' or command == 'PEXPIREAT' then
    if server.call('EXISTS', key) == 1 then
      server.call('HSET', EXPIRES, key, command == 'PEXPIRE' and number(NOW + value) or value)
    end
    return 1
  elseif command == 'PERSIST' then
    return server.call('HDEL', EXPIRES, key)
  elseif value == nil then
    return server.call(command, key)
  end
  return server.call(command, key, value, ...)
end}

-- A listening waiter has looked in time and read its mail; one that was granted the lock and does not claim it has not looked
-- since.
local function hear(token)
  if token == ASKS then
    -- Its last look may have been long ago.
  elseif server.call('SISMEMBER', SILENT, token) == 1 then
    -- However the clock was set.
    server.call('DEL', MAILBOX .. token)
    server.call('LPUSH', MAILBOX .. token, number(NOW - GRACE) .. ' 0')
    return
  elseif not server.call('ZSCORE', HOLDERS, token) then
    server.call('ZADD', HEARTBEATS, number(NOW + REFRESH + LATE), token)
  end
  for _, key in ipairs({QUEUE, HEARTBEATS}) do
    server.call('HSET', EXPIRES, key, number(NOW + REFRESH_MAX + LATE))
  end
end

server.call('SREM', SILENT, ASKS)
for _, token in ipairs(server.call('ZRANGE', QUEUE, 0, -1)) do
  hear(token)
end
local expires = server.call('HGETALL', EXPIRES)
for at = 1, #expires, 2 do
  local key = expires[at]
  if tonumber(expires[at + 1]) <= NOW or server.call('EXISTS', key) == 0 then
    server.call('DEL', key)
    server.call('HDEL', EXPIRES, key)
  end
end

local function play()
