-- Put in front of a script when a history plays it, with `after.lua` behind it. They replace the server's time by the
-- history's.
--
-- ARGV, after those of the script
--       now       the history's time, in ms
-- Reply {'reply', the script's, holders, info, fence, last, places, sequence, mail}
--                 places: {{token, end of its place}, ...}, in the order of the queue; mail: {{token, what}, ...}, of this step
--       {'error', message}

local NOW = tonumber(ARGV[#ARGV])
local HOLDERS, INFO, FENCE, LAST, QUEUE, PLACES, MAILBOX, SEQUENCE = unpack(KEYS)
-- Until when a key exists, by the history's time.
local EXPIRES = 'expires'

local server = redis

-- The server would expire keys by its own time.
local redis = {pcall = server.pcall, call = function(command, key, value, ...)
  if command == 'PEXPIRE' or command == 'PEXPIREAT' then
    if server.call('EXISTS', key) == 1 then
      server.call('HSET', EXPIRES, key, command == 'PEXPIRE' and string.format('%.0f', NOW + value) or value)
    end
    return 1
  elseif command == 'PERSIST' then
    return server.call('HDEL', EXPIRES, key)
  elseif value == nil then
    return server.call(command, key)
  end
  return server.call(command, key, value, ...)
end}

local expires = server.call('HGETALL', EXPIRES)
for at = 1, #expires, 2 do
  local key = expires[at]
  if tonumber(expires[at + 1]) <= NOW or server.call('EXISTS', key) == 0 then
    server.call('DEL', key)
    server.call('HDEL', EXPIRES, key)
  end
end

local function play()
