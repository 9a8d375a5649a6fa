-- Takes the lock from the holders that are named. One whose command runs keeps it until that has ended, or its lease; but it cannot
-- renew it, and hears of it when it tries to. A request that comes late finds none of them, and does nothing.
--
-- ARGV  1 named     JSON {token: fence, ...}, as the list script has told them; '0': its fence is lost
--       2 by        JSON of the particulars of who revokes it
--       3 now       1: free it at once, whether the command has heard of it or not
-- Reply {0}         there is nothing to take
--       {1, others} it is held, but by none of those: {{held for, expires in or -1, info, token}, ...}
--       {2, taken, free in, untold, granted, told}
--                   from these, as above; ms until the last lease of a command ends; how many commands may still run and will
--                   not hear of it; tokens of waiters, or '' (see confirm_handoff)

local NAMED, BY, AT_ONCE = cjson.decode(ARGV[1]), cjson.decode(ARGV[2]), ARGV[3] == '1'

allow_when_full()

local taken, others = {}, {}
local free_in, untold = 0, 0
-- Those that end now.
local ended = {}
local holders = redis.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES')
for at = 1, #holders, 2 do
  local token, ends = holders[at], holders[at + 1]
  local info = info_of(token)
  local lost = is_lost(token, info)
  -- One that was only granted the lock is not a holder yet.
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
-- The one that has begun last is the last run.
table.sort(ended, function(info, other)
  return is_less(info.fence or '', other.fence or '')
end)
drop_ended()
for _, info in ipairs(ended) do
  note(info, {})
end
local handed, told = hand_off()
expire_holders()
return {2, taken, free_in, untold, handed, told}
