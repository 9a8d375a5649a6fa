-- Extends a lease that still exists; never creates one. While a command runs under it, every renewal extends it by at least
-- the ttl that it was acquired with or renewed with by hand, whichever is the greatest: lockrun counts on its own, and would
-- learn of a shorter lease too late.
--
-- ARGV  1 token     of the acquisition
--       2 ttl       of the lease from now, in ms; 0: it never expires; -1: the ttl that it has
--       3 run       1: for its run; a lock that was kept after the run is left alone
-- Reply {1}         it is ours
--       {0, {held for, expires in or -1, info, token} or {}}
--                   it is not; in ms
--       {2, who}    it was revoked; JSON of who revoked it

local TOKEN, TTL = ARGV[1], tonumber(ARGV[2])

if not is_in_force(TOKEN) then
  return {0, holder()}
end
local info = info_of(TOKEN)
if info.kept and ARGV[3] == '1' then
  return {0, {}}
end
if info.revoked then
  return {2, cjson.encode(info.revoked)}
end
allow_when_full()
if TTL == -1 then
  TTL = info.ttl or error('nothing is known of a holder but its lease')
elseif info.hand and TTL ~= info.ttl or not info.hand and info.ttl and info.ttl ~= 0 and TTL > info.ttl then
  info.ttl = TTL
  set_info(TOKEN, info)
elseif not info.hand and info.ttl and (info.ttl == 0 or TTL ~= 0 and TTL < info.ttl) then
  TTL = info.ttl
end
-- A command counts on the lease that it was last promised: no renewal shortens that.
local before = next_end()
if TTL == 0 then
  set_lease(TOKEN, math.huge)
elseif info.hand or now + TTL > ends_of(TOKEN) then
  set_lease(TOKEN, now + TTL)
end
notify_expiry(before)
note_lease(TTL, info.hand)
expire_holders()
return {1}
