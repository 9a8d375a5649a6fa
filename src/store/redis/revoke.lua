-- Revokes the lock of the named holders. A holder whose command runs keeps the lock until the command or the lease ends, but
-- cannot renew it, and learns of the revocation when it tries. One without a command, or whose lease never expires, loses it
-- at once. A late request finds none of the named holders, and does nothing.
--
-- ARGV  1 named     JSON {token: fence, ...}, as the list script reports them; '0': its fence is lost
--       2 by        JSON of the particulars of who revokes it
--       3 now       1: free it at once, even if the command has not learned of it
-- Reply {0}         nobody holds it
--       {1, others} it is held, but by none of those: {{held for, expires in or -1, info, token}, ...}
--       {2, taken, free in, untold, granted, notified}
--                   taken: from these, as above; free in: ms until the last lease of a command ends; untold: how many commands
--                   may still run and will not learn of it; granted, notified: tokens of waiters, or '' (see confirm_handoff)

local NAMED, BY, AT_ONCE = cjson.decode(ARGV[1]), cjson.decode(ARGV[2]), ARGV[3] == '1'

allow_when_full()

local taken, others = {}, {}
local free_in, untold = 0, 0
-- Those whose hold ends now.
local ended = {}
local holders = redis.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES')
for at = 1, #holders, 2 do
  local token, ends = holders[at], holders[at + 1]
  local info = info_of(token)
  local lost = is_lost(token, info)
  -- A waiter that was only granted the lock is not a holder yet.
  if (info.fence or info.revoked or lost) and is_in_force(token) then
    local description = describe(token, ends)
    if NAMED[token] ~= tostring(info.fence or 0) then
      others[#others + 1] = description
    else
      taken[#taken + 1] = description
      if info.hand or AT_ONCE or ends == 'inf' then
        if not info.hand then
          untold = untold + 1
        end
        ended[#ended + 1] = info
        redis.call('ZREM', HOLDERS, token)
        redis.call('HDEL', INFO, token)
      else
        info.revoked = BY
        set_info(token, info)
        free_in = math.max(free_in, ends - now)
      end
    end
  end
end
if #taken == 0 then
  return #others == 0 and {0} or {1, others}
end
-- The holder with the greatest fence is recorded last, as the last run.
table.sort(ended, function(info, other)
  return is_less(info.fence or '', other.fence or '')
end)
drop_ended()
for _, info in ipairs(ended) do
  note(info, {})
end
local handed, notified = hand_off()
expire_holders()
return {2, taken, free_in, untold, handed, notified}
