-- Releases a lock that is ours or was granted to us, or retains it for a while; records the run that has ended; leaves the
-- queue. A lock that becomes free is handed off.
--
-- ARGV  1 token     of the acquisition
--       2 ending    JSON {status} or {signal}, by hand {}; empty: there was no run to record
--       3 doubt     1: a request under this token may still be on its way, and must not acquire the lock
--       4 how       empty: release; hand: release by hand; hold: retain it until it has been held for `span`; keep: retain it
--                   until it is released by hand, or for `span`; cancel: release what `request` acquired, and nothing else
--       5 span      in ms; 0 with keep: for ever
--       6 succeeded  1: the command ended with 0 by itself, and so has used the value it had reserved, if any
--       7 request   of a cancel: the request to cancel, as given to the acquire script; by hand: identifies this request
-- Reply {0, {held for, expires in or -1, info, token} or {}}
--                   by hand: it is not ours
--       {1, granted, notified, stays}
--                   done; granted, notified: tokens of waiters, or '' (see confirm_handoff); stays 1: retained; 0: released;
--                   -1: it was not ours (any more)
--       {2}         by hand: a command runs under it; it is released when that ends

-- For how long a late request under the token is refused, in ms.
local CANCELLED_TTL = 300000

local TOKEN, ENDING, DOUBT, HOW, SPAN = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
local SUCCEEDED, REQUEST = ARGV[6] == '1', ARGV[7]

local info = info_of(TOKEN)
-- A waiter that was only granted the lock does not hold it yet.
local is_there = is_in_force(TOKEN) and info.fence
local holds = is_there and not info.forgotten
if HOW == 'hand' and not holds then
  -- Perhaps this very request released it, and the reply was lost.
  if last_run().request == REQUEST then
    return {1, '', '', 0}
  end
  return {0, holder()}
end
-- Either the lock was held before the request that is being cancelled, or this was done already and the reply was lost.
local is_others = HOW == 'cancel' and (info.request or '') ~= REQUEST
if is_there and is_others or holds and info.hand and (HOW == 'hold' or HOW == 'keep') then
  return {1, '', '', 1}
end
allow_when_full()
if HOW == 'hand' and not info.hand then
  info.released = true
  set_info(TOKEN, info)
  return {2}
end

-- A run that has lost its lock is recorded too: a careful waiter wants to know that its command is dead.
if ENDING ~= '' then
  local ending = cjson.decode(ENDING)
  note(info, ending, HOW == 'hand' and REQUEST or nil, SUCCEEDED and holds and not (info.revoked or info.hand))
else
  -- First those that ended earlier: this end is the latest.
  drop_ended()
  if is_there then
    note_end(now)
  end
end

-- A used value becomes the last one, unless a value further on was used already. Not the later run decides: it may have been
-- given an earlier value, which another run had failed to use. A lease lost unnoticed changes nothing: used is used.
if info.value and SUCCEEDED then
  local place = tonumber(redis.call('HGET', SEQUENCE, 'place') or 0)
  local fence = redis.call('HGET', SEQUENCE, 'fence') or ''
  if place < info.place or (place == info.place and is_less(fence, info.fence)) then
    redis.call('HSET', SEQUENCE, 'last', info.value, 'place', whole(info.place), 'fence', info.fence)
  end
end

-- A revoked lock is not retained, even if its command ended before it learned of that. Nor is one that was released by hand.
local ends
holds = holds and not info.revoked
local may_stay = holds and not info.released
if may_stay and HOW == 'keep' then
  ends = SPAN == 0 and math.huge or now + SPAN
elseif may_stay and HOW == 'hold' and info.since + SPAN > now then
  ends = info.since + SPAN
end
if ends then
  info.hand, info.kept, info.ttl = true, true, SPAN
  set_info(TOKEN, info)
  set_lease(TOKEN, ends)
  if FAILOVER then
    note_lease(SPAN, true)
  end
  -- Notify waiters whatever end they know: they watch a renewed lease differently.
  tell_end(math.huge, ends)
else
  redis.call('ZREM', HOLDERS, TOKEN)
  redis.call('HDEL', INFO, TOKEN)
  remove_waiter(TOKEN)
end
if DOUBT then
  -- In front of old mail, which nobody reads any more.
  redis.call('LPUSH', MAILBOX .. TOKEN, CANCELLED)
  redis.call('PEXPIRE', MAILBOX .. TOKEN, CANCELLED_TTL)
end
drop_ended()
local handed, notified = hand_off()
expire_holders()
return {1, handed, notified, ends and 1 or holds and 0 or -1}
