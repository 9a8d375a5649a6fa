-- Claims the lock that was granted to a waiter: the quick way, for which others wait. Asked again under the same token, answers as
-- the first time.
--
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 hand      1: it is taken by hand; 0: for a command of lockrun's
--       4 request   which request this is, under a token of the user's own; empty: the only one under its token
-- Reply {1, fence, slot}
--                   it is ours
--       {0}         it is not granted to us (any more), or is not that simple: ask by the acquire script

local TOKEN, TTL, HAND = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local REQUEST = ARGV[4] ~= '' and ARGV[4] or nil

if not is_in_force(TOKEN) then
  return {0}
end
local info = info_of(TOKEN)
-- Others wait for us to have claimed it.
if info.leads then
  return {0}
end
-- One that comes again, or when the run is over and its lock only stays for a while, changes nothing.
if not info.fence then
  info = {who = info.who, slot = info.slot or 0, hand = HAND or nil, request = REQUEST}
  take_hold(TOKEN, TTL, info)
  forget_waiter(TOKEN)
  set_lease(TOKEN, TTL == 0 and math.huge or now + TTL)
  expire_holders()
end
return {1, info.fence, info.slot}
