-- For the scripts that change what is held: behind the prelude.

-- A server that is out of memory refuses a script whose first change could take more of it. After any other change, and be it
-- in vain, it lets it pass; a lease must not be lost, nor a lock stay, for want of a few bytes.
local function allow_when_full()
  redis.call('DEL', MAILBOX)
end

local function is_in_force(token)
  local ends = ends_of(token)
  return ends and ends > now
end
