-- Releases a lock that is ours, or retains it for a while; records the run that has ended; leaves the queue. A lock that becomes
-- free is handed off.
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
--       {1, stays}  done; stays 1: retained; 0: released; -1: it was not ours (any more)
--       {2}         by hand: a command runs under it; it is released when that ends

-- For how long a late request under the token is refused, in ms.
local CANCELLED_TTL = 300000

local TOKEN, ENDING, DOUBT, HOW, SPAN = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
local SUCCEEDED, REQUEST = ARGV[6] == '1', ARGV[7]

local info, before = info_of(TOKEN), next_end()
local was_in_force = is_in_force(TOKEN)
local is_held = was_in_force and info.fence

-- Hands off what is free, and returns the reply.
local function finish(...)
  drop_ended()
  hand_off()
  notify_expiry(before)
  expire_holders()
  return {...}
end

allow_when_full()
if HOW == 'hand' and not is_held then
  -- Perhaps this very request released it, and the reply was lost.
  if last_run().request == REQUEST then
    return finish(1, 0)
  end
  return finish(0, holder())
end
-- Either the lock was held before the request that is being cancelled, or this was done already and the reply was lost.
local is_others = HOW == 'cancel' and (info.request or '') ~= REQUEST
if is_held and (is_others or info.hand and (HOW == 'hold' or HOW == 'keep')) then
  return finish(1, 1)
end
if HOW == 'hand' and not info.hand then
  info.released = true
  set_info(TOKEN, info)
  return finish(2)
end

-- A run that has lost its lock is recorded too.
if ENDING ~= '' then
  local ending = cjson.decode(ENDING)
  note(info, ending, HOW == 'hand' and REQUEST or nil, SUCCEEDED and is_held and not (info.revoked or info.hand))
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
local holds = is_held and not info.revoked
local may_stay, ends = holds and not info.released, nil
if may_stay and HOW == 'keep' then
  ends = SPAN == 0 and math.huge or now + SPAN
elseif may_stay and HOW == 'hold' and info.since + SPAN > now then
  ends = info.since + SPAN
end
if ends then
  info.hand, info.kept, info.ttl = true, true, SPAN
  set_info(TOKEN, info)
  set_lease(TOKEN, ends)
  note_lease(SPAN, true)
else
  redis.call('ZREM', HOLDERS, TOKEN)
  drop_waiter(TOKEN)
end
if DOUBT then
  post(TOKEN, CANCELLED, CANCELLED_TTL)
end
-- A lock that was revoked, or whose particulars are lost, was held until now, but cannot be kept.
local is_free = holds or was_in_force and HOW ~= 'keep'
return finish(1, ends and 1 or is_free and 0 or -1)
