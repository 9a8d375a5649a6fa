-- For the scripts that change holds. Sent after the prelude.

-- A server that is out of memory rejects a script whose first write may need memory. After any other write, even one that
-- changes nothing, it lets the script go on. A lease must not be lost, nor a lock stay held, for want of a few bytes.
local function allow_when_full()
  redis.call('DEL', MAILBOX)
end

local function is_in_force(token)
  local ends = ends_of(token)
  return ends and ends > now
end
