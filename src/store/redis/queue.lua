-- The queue, for the scripts that free the lock or wait for it. Sent after the prelude.
--
-- A place in the queue is a lease: each request of the waiter renews it, and at its end it is lost. Whatever frees the lock
-- hands it off in the same step: the first waiters become holders, the leases of their places become the lock's, and they get
-- mail that says so.
--
-- A mail is "FENCE SLOT": its reader holds the lock; or empty: its reader is to ask again. Each request of a waiter deletes its
-- mail first, so what it reads was written after that request.

-- How many of the first waiters look at the lock when a lease or a place ends, and the time between two of them, in ms.
local LOOKERS, LOOK_STEP = 4, 150
-- The longest place, and how often a waiter asks again in the length of its place.
local PLACE_MAX, ASKS = 30000, 3

local function post(token, what, expires_in)
  redis.call('DEL', MAILBOX .. token)
  redis.call('RPUSH', MAILBOX .. token, what)
  redis.call('PEXPIRE', MAILBOX .. token, whole(expires_in))
end

-- Removes a waiter from the queue.
local function remove_waiter(token)
  redis.call('ZREM', QUEUE, token)
  redis.call('ZREM', PLACES, token)
end

-- Removes a waiter from the queue, with its particulars.
local function drop_waiter(token)
  remove_waiter(token)
  redis.call('HDEL', INFO, token)
end

-- Removes leases and places that have ended. The caller hands off what has become free.
local function drop_ended()
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', whole(now))) do
    redis.call('ZREM', HOLDERS, token)
    redis.call('HDEL', INFO, token)
  end
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', PLACES, '-inf', whole(now))) do
    drop_waiter(token)
  end
  -- The clock was set back: a dead waiter must not keep its place for so much longer.
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', PLACES, '(' .. whole(now + PLACE_MAX), '+inf')) do
    redis.call('ZADD', PLACES, whole(now + PLACE_MAX), token)
  end
end

-- When the next lease ends; inf if none does.
local function next_end()
  return tonumber(redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Counts one more holder in `room`.
local function occupy(room, info)
  room.count, room.taken[info.slot or 0] = room.count + 1, true
  room.sharing, room.lost = room.sharing + (info.slots == 0 and 1 or 0), room.lost or is_lost(info)
end

-- Counts the holders: how many there are, how many share the lock, which slots they have, and whether nothing is known of one
-- but its lease.
local function survey()
  local room = {count = 0, sharing = 0, taken = {}}
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    occupy(room, info_of(token))
  end
  return room
end

-- Whether a claim that lets so many hold the lock fits beside those in `room`.
local function has_room(slots, room)
  if room.lost then
    return false
  end
  return slots == 0 and room.sharing == room.count or room.sharing == 0 and room.count < slots
end

-- The lowest free slot. Slot 0 is never that of a holder that shares the lock.
local function lowest_slot(slots, room)
  local slot = slots == 0 and 1 or 0
  while room.taken[slot] do
    slot = slot + 1
  end
  return slot
end

-- When the run began that was wanted once and has succeeded within the last `once` ms; nil if there is none. One that began in the future,
-- because the clock was set back since, counts for no longer than one in the past.
local function done_since(once)
  local done = once and last_run().once
  return done and math.abs(now - done) < once and done or nil
end

-- Makes the first waiters holders, in order, for as long as the next one fits beside the holders. The lease of its place becomes
-- the lock's, and ends when the place would have ended: its last answer promised that. A slot that the next waiter cannot use,
-- because it allows fewer holders, is not handed to those behind it. A waiter whose run is not needed any more is removed.
--
-- Stops at the waiter `asking`. Returns whether nobody is ahead of that request any more, and those that hold the lock then.
local function hand_off(asking)
  local room
  while withheld == 0 do
    local token = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    room = (token or asking) and (room or survey())
    if not token then
      return true, room
    end
    local info = info_of(token)
    local slots, length, ends = tonumber(info.slots), tonumber(info.ttl), redis.call('ZSCORE', PLACES, token)
    if not (slots and length and ends) or done_since(tonumber(info.once)) then
      -- Its run is not needed; or it is not known what it waits for, or for how long, so it joins anew.
      drop_waiter(token)
      post(token, '', length or PLACE_MAX)
    elseif token == asking or not has_room(slots, room) then
      return token == asking and has_room(slots, room), room
    else
      -- Without a fence nobody can hold the lock: the next request reports it.
      local is_counted, fence = pcall(next_fence)
      if not is_counted then
        return false, room
      end
      info.slot, info.joined = lowest_slot(slots, room), nil
      take_hold(token, fence, length, info)
      set_lease(token, ends)
      remove_waiter(token)
      post(token, fence .. ' ' .. whole(info.slot), ends - now)
      occupy(room, info)
    end
  end
  return false, room
end

-- Wakes those of the first waiters that would ask again only after the next lease has ended, if that is sooner than it was
-- `before`: they must learn when to look.
local function notify_expiry(before)
  local ends = next_end()
  if ends >= before then
    return
  end
  for _, token in ipairs(redis.call('ZRANGE', QUEUE, 0, LOOKERS - 1)) do
    local place, length = redis.call('ZSCORE', PLACES, token), tonumber(info_of(token).ttl)
    if place and length and ends < place - (length - math.floor(length / ASKS)) then
      post(token, '', length)
    end
  end
end

-- In how many ms a waiter whose place lasts for `length` must look at the lock, although nothing wakes it: when a lease, or a place
-- ahead of it, has ended, or the lock is not withheld any more; -1: not before it asks again anyway. One that is not among the
-- first looks if the dead ahead of it alone keep it from being that: their places end before it asks again.
local function look_in(place, length)
  local asks_at, ends, dead, last = now + math.floor(length / ASKS), next_end(), 0, 0
  for at = 0, place - 1 do
    local token = redis.call('ZRANGE', QUEUE, at, at)[1]
    local place_ends = tonumber(redis.call('ZSCORE', PLACES, token)) or math.huge
    ends = math.min(ends, place_ends)
    if place_ends < asks_at then
      dead, last = dead + 1, math.max(last, place_ends)
    elseif at + 1 - dead >= LOOKERS then
      return -1
    end
  end
  if place >= LOOKERS then
    ends = last
  elseif withheld > 0 then
    ends = math.min(ends, now + withheld)
  end
  return ends < math.huge and math.max(ends + LOOK_STEP * (place - dead) - now, 0) or -1
end
