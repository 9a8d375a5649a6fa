-- Acquires the lock if it is free and nobody is ahead of us; otherwise joins the queue, renews the place in it, or leaves it.
-- Acquires nothing if a run has succeeded recently enough. Repeated under the same token, gives the same answer.
--
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
--       4 wait      1: wait in the queue; 0: do not wait (any more)
--       5 length    of a place in the queue, in ms
--       6 hand      1: acquired by hand; 0: for a command of lockrun's
--       7 slots     how many may hold the lock at once; 0: all that share it
--       8 request   which request this is, under a token of the user's own; empty: the only one under its token
--       9 max       do not join the queue if so many wait already; empty: no limit
--      10 once      acquire nothing if a run with this condition that began less than so many ms ago has ended with 0; 0: none
-- Reply {1, fence, slot}
--                   it is ours
--       {0, {held for, expires in or -1, info, token} or {}, place in the queue from 0 or -1, look again in or -1, last fence, withheld}
--                   it is not; times in ms
--                   place -1: we do not wait, because we did not want to, too many do, or our token holds the lock otherwise
--                   withheld: for how long nothing is granted yet
--       {2, began, now}
--                   not wanted; began: when the run that succeeded began

local TOKEN, TTL, WHO, WAIT = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local LENGTH, HAND, SLOTS = tonumber(ARGV[5]), ARGV[6] == '1' or nil, tonumber(ARGV[7])
local REQUEST = ARGV[8] ~= '' and ARGV[8] or nil
local MAX, ONCE = tonumber(ARGV[9]), ARGV[10] ~= '0' and tonumber(ARGV[10]) or nil

-- Renews our place, or joins the queue.
local function wait()
  local info = redis.call('ZSCORE', QUEUE, TOKEN) and info_of(TOKEN) or {}
  if not info.slots then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', QUEUE, whole((last or 0) + 1), TOKEN)
    redis.call('DEL', MAILBOX .. TOKEN)
    info = {who = cjson.decode(WHO), slots = SLOTS, once = ONCE, hand = HAND, request = REQUEST, joined = now}
  elseif info.request ~= REQUEST then
    -- Two requests wait in this place, so neither may cancel what the other obtains.
    info.request = nil
  end
  info.ttl = LENGTH
  set_info(TOKEN, info)
  redis.call('ZADD', PLACES, whole(now + LENGTH), TOKEN)
  for _, key in ipairs({QUEUE, PLACES}) do
    redis.call('PEXPIRE', key, REMEMBER)
  end
  note_lease(LENGTH)
end

-- The reply that others hold the lock, to one that waits in this place.
local function not_mine(place)
  return {0, holder(), place, place >= 0 and look_in(place, LENGTH) or -1, redis.call('GET', FENCE) or '0', withheld}
end

if redis.call('LINDEX', MAILBOX .. TOKEN, 0) == CANCELLED then
  return {0, {}, -1, -1, '0', 0}
end
if not ends_of(TOKEN) then
  refuse_if_lost()
end

local before = next_end()
drop_ended()

-- Hands off what is free, and returns the reply.
local function finish(reply)
  hand_off()
  notify_expiry(before)
  expire_holders()
  return reply
end

local waits, holds = redis.call('ZSCORE', QUEUE, TOKEN), ends_of(TOKEN)
if waits or holds then
  -- Even if there is no mail: after a script's first write, a server that is out of memory lets its other writes pass, so
  -- waiters keep their turn.
  redis.call('DEL', MAILBOX .. TOKEN)
end

if holds and not info_of(TOKEN).fence then
  -- Only its lease is known: treat this as a new acquisition.
  redis.call('ZREM', HOLDERS, TOKEN)
  holds = nil
end
if holds then
  local info = info_of(TOKEN)
  local slots, reply = info.slots or 1, {1, info.fence, info.slot}
  if slots ~= 1 and slots ~= SLOTS then
    -- Otherwise the reply would say that it holds the lock in another mode, by which others are not admitted or refused. One
    -- that acquired it alone is answered in any mode.
    reply = not_mine(-1)
  else
    if info.request ~= REQUEST then
      -- Two requests were answered that the lock is theirs, so cancelling one must not release it.
      info.request = nil
      set_info(TOKEN, info)
    end
    -- An acquisition by hand under a run's token does not change the lease that the run counts on.
    if info.hand or not HAND then
      begin_lease(TOKEN, TTL, info)
    end
  end
  return finish(reply)
end

local done = done_since(ONCE)
if done then
  drop_waiter(TOKEN)
  return finish({2, done, now})
end

if waits then
  if info_of(TOKEN).slots ~= SLOTS then
    -- It wants something else than it has waited for, so it joins anew.
    drop_waiter(TOKEN)
  end
  wait()
end
local is_free, room = hand_off(TOKEN)
if is_free and has_room(SLOTS, room) then
  local info = {who = cjson.decode(WHO), slot = lowest_slot(SLOTS, room), slots = SLOTS, once = ONCE, hand = HAND,
    request = REQUEST}
  take_hold(TOKEN, next_fence(), TTL, info)
  remove_waiter(TOKEN)
  begin_lease(TOKEN, TTL, info)
  return finish({1, info.fence, info.slot})
end

local place = redis.call('ZRANK', QUEUE, TOKEN)
if WAIT and not waits and (not MAX or redis.call('ZCOUNT', PLACES, '-inf', '+inf') < MAX) then
  wait()
  place = redis.call('ZRANK', QUEUE, TOKEN)
elseif not WAIT and place then
  drop_waiter(TOKEN)
  -- It may have stood in the way of those behind it.
  hand_off()
  place = nil
end
notify_expiry(before)
if waits or place then
  -- The reply says when to look.
  redis.call('DEL', MAILBOX .. TOKEN)
end
expire_holders()
return not_mine(place or -1)
