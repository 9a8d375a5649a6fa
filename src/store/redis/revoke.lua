-- Revokes the lock of the named holders. A holder whose command runs keeps the lock until the command or the lease ends, but
-- cannot renew it, and learns of the revocation when it tries; a lease that was made endless by hand gets an end for that. One
-- without a command, or that does not renew its lease, because it never expires, loses it at once. A late request finds none
-- of the named holders, and does nothing.
--
-- Without names, changes nothing, and names the holders. The client returns the names as they are: whatever another program has
-- written into a record, this script reads it in the same way both times.
--
-- ARGV  1 named     JSON {token: fence, ...}, as this script has named them; empty: name them
--       2 by        JSON of the particulars of who revokes it
--       3 now       1: free it at once, even if the command has not learned of it
--       4 only      name only the holder with this fence; empty: all
-- Reply {named, taken, untold}
--                   without names: what revoking them would take; as below
--       {0}         nobody holds it
--       {1, others} it is held, but by none of those: {{held for, expires in or -1, info, token}, ...}
--       {2, taken, free in, untold}
--                   taken: from these, as above; free in: ms until the last lease of a command ends; untold: how many commands
--                   may still run and will not learn of it

local NAMED, BY, AT_ONCE, ONLY = ARGV[1] ~= '' and cjson.decode(ARGV[1]), decoded(ARGV[2]), ARGV[3] == '1', ARGV[4]

local before = next_end()
if NAMED then
  allow_when_full()
end

-- The fence of a holder as text; '0': it is lost.
local function fence_of(info)
  return type(info.fence) == 'table' and '0' or tostring(info.fence or 0)
end

local names, taken, others = {}, {}, {}
local free_in, untold = 0, 0
-- Those whose hold ends now.
local ended = {}
local holders = redis.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES')
for at = 1, #holders, 2 do
  local token, ends = holders[at], holders[at + 1]
  local info = info_of(token)
  -- A number such as NaN, which is read but cannot be written: the particulars count as lost.
  info = pcall(cjson.encode, info) and info or {}
  if is_in_force(token) then
    local description, fence = describe(token, ends), fence_of(info)
    local is_meant = ONLY == '' or ONLY == fence
    if NAMED then
      is_meant = NAMED[token] == fence
    end
    if not is_meant then
      others[#others + 1] = description
    else
      names[token], taken[#taken + 1] = fence, description
      local ttl = tonumber(info.ttl) or 0
      local at_once = info.hand or AT_ONCE or ends == 'inf' and ttl == 0
      if at_once and not info.hand then
        untold = untold + 1
      end
      if NAMED and at_once then
        ended[#ended + 1] = info
        redis.call('ZREM', HOLDERS, token)
        redis.call('HDEL', INFO, token)
      elseif NAMED then
        if ends == 'inf' then
          ends = now + ttl
          set_lease(token, ends)
        end
        info.revoked = BY
        set_info(token, info)
        free_in = math.max(free_in, ends - now)
      end
    end
  end
end
if not NAMED then
  return {cjson.encode(names), taken, untold}
end
-- The holder with the greatest fence is recorded last, as the last run.
table.sort(ended, function(info, other)
  return is_less(fence_of(info), fence_of(other))
end)
-- What has been taken stays taken, even if the last run or the queue cannot be read.
pcall(function()
  for _, info in ipairs(ended) do
    note(info, {})
  end
  drop_ended()
  hand_off()
  notify_expiry(before)
end)
expire_holders()
if #taken == 0 then
  return #others == 0 and {0} or {1, others}
end
return {2, taken, free_in, untold}
