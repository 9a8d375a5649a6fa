-- Releases a lock that is ours or was granted to us, or lets it stay for a while, writes down the run that has ended, and
-- leaves the queue. A lock that becomes free goes to the first waiter.
--
-- ARGV  1 token     of the acquisition
--       2 ending    JSON {status} or {signal} or {}; empty: there was no run, write nothing down
--       3 doubt     1: a request for the lock under this token may still be on its way; it must not get it
--       4 how       empty: release; hand: the same, by hand; hold: it stays until it has been held for `span`; keep: it stays
--                   until it is released by hand, or for `span`; cancel: release what `request` obtained, and nothing
--                   else
--       5 span      in ms; 0 with keep: for ever
--       6 succeeded  1: the command has ended with 0 by itself, and has used the value that it had reserved, if it had
--       7 request   of a cancel: which request is cancelled, as the acquire script was given it; by hand: names this request
-- Reply {0, {held for, expires in or -1, info, token} or {}}
--                   by hand: it is not ours
--       {1, granted, told, stays}
--                   done; tokens of waiters, or '' (see confirm_handoff); 1: it stays; 0: it does not; -1: it was not ours (any more)
--       {2}         by hand: a command runs under it, and when that has ended it is released

-- For how long such a request is refused.
local CANCELLED_TTL = 300000

local TOKEN, ENDING, DOUBT, HOW, SPAN = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
local SUCCEEDED, REQUEST = ARGV[6] == '1', ARGV[7]

local info = info_of(TOKEN)
-- One that was only granted the lock does not hold it yet.
local is_there = is_in_force(TOKEN) and info.fence
local holds = is_there and not info.forgotten
if HOW == 'hand' and not holds then
  -- Perhaps this very request has released it, and the answer was lost.
  if last_run().request == REQUEST then
    return {1, '', '', 0}
  end
  return {0, holder()}
end
-- It was held before the request came that is cancelled. Or what is asked was done, and the answer was lost.
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

-- A run that has lost its lock is noted too: that its command is dead is what a careful waiter wants to hear.
if ENDING ~= '' then
  local ending = cjson.decode(ENDING)
  note(info, ending, HOW == 'hand' and REQUEST or nil, SUCCEEDED and holds and not (info.revoked or info.hand))
else
  -- First those that have ended before: this end is the latest.
  drop_ended()
  if is_there then
    note_end(now)
  end
end

-- A value that was used is the last one, unless one that comes after it was used already. It is not the later run that
-- counts: it may have been given an earlier value, which another one had failed to use. That the lease was lost unnoticed
-- changes nothing: used is used.
if info.value and SUCCEEDED then
  local place = tonumber(redis.call('HGET', SEQUENCE, 'place') or 0)
  local fence = redis.call('HGET', SEQUENCE, 'fence') or ''
  if place < info.place or (place == info.place and is_less(fence, info.fence)) then
    redis.call('HSET', SEQUENCE, 'last', info.value, 'place', whole(info.place), 'fence', info.fence)
  end
end

-- What was revoked does not stay, even if its command ended well before it heard of that.
local ends
holds = holds and not info.revoked
if holds and HOW == 'keep' and not info.released then
  ends = SPAN == 0 and math.huge or now + SPAN
elseif holds and HOW == 'hold' and info.since + SPAN > now then
  ends = info.since + SPAN
end
if ends then
  info.hand, info.kept, info.ttl = true, true, SPAN
  set_info(TOKEN, info)
  set_lease(TOKEN, ends)
  if FAILOVER then
    note_lease(SPAN, true)
  end
  -- Whatever they know: a lease that is renewed is watched otherwise.
  tell_end(math.huge, ends)
else
  redis.call('ZREM', HOLDERS, TOKEN)
  redis.call('HDEL', INFO, TOKEN)
  remove_waiter(TOKEN)
end
if DOUBT then
  -- In front of old mail, which nobody takes any more.
  redis.call('LPUSH', MAILBOX .. TOKEN, CANCELLED)
  redis.call('PEXPIRE', MAILBOX .. TOKEN, CANCELLED_TTL)
end
drop_ended()
local handed, told = hand_off()
expire_holders()
return {1, handed, told, ends and 1 or holds and 0 or -1}
