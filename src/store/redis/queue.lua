-- The queue, for the scripts that hand the lock to waiters or queue for it. Sent after the prelude and `mail.lua`.
--
-- The server knows when each waiter is due to look at the lock again. Every look hands off a lock whose lease or grant has
-- run out, so it is enough that one waiter looks in time.

-- How long a waiter that was granted the lock may take to claim it.
local CLAIM_WINDOW = 1400
-- After how much of that time others look whether it was claimed.
local FIRST_LOOK = 600
-- The period at which waiters look that could use a slot which those ahead of them leave unused: all look at the same times.
local BEAT = 800
-- More than any number of slots.
local MANY = 1e6
-- How often a waiter looks when nothing happens.
local REFRESH = 8000

-- How many waiters are expected to look within so many ms.
local function due(within)
  return redis.call('ZCOUNT', HEARTBEATS, '(' .. whole(now + LATE), whole(now + within + LATE))
end

-- Makes the others pass this waiter over until it looks again.
local function mark_unresponsive(token)
  redis.call('LPUSH', MAILBOX .. token, whole(now - GRACE) .. ' 0')
  redis.call('PEXPIRE', MAILBOX .. token, MAILBOX_TTL)
end

-- Removes a waiter from the queue, with its particulars and its grant.
local function drop_waiter(token)
  redis.call('ZREM', HOLDERS, token)
  remove_waiter(token)
  redis.call('HDEL', INFO, token)
end

-- Removes expired leases and grants, and returns how many there were. A waiter that did not claim its grant keeps its place,
-- marked as unresponsive. So are all that have missed a look, such as the waiters of a machine that was cut off: otherwise
-- the lock would be granted to each of them in turn. The caller must hand off what has become free: nobody else will notice
-- it.
local function drop_ended()
  local ended, unclaimed, since = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now), false, 0
  for _, token in ipairs(ended) do
    redis.call('ZREM', HOLDERS, token)
    if redis.call('ZSCORE', QUEUE, token) then
      unclaimed = true
    else
      local info = info_of(token)
      since = math.max(since, not info.joined and math.min(tonumber(info.since) or now, now) or 0)
      redis.call('HDEL', INFO, token)
    end
  end
  if since > 0 then
    -- Later than any end that a waiter had seen before it saw this holder, but no later than that: if the server has gone
    -- back to an older state, the next holder may be the lost one.
    note_end(since + 1)
  end
  if unclaimed then
    for _, token in ipairs(redis.call('ZRANGEBYSCORE', HEARTBEATS, now, whole(now - GRACE + LATE))) do
      if not is_unresponsive(token) then
        mark_unresponsive(token)
      end
    end
  end
  return #ended
end

-- Counts one more holder, or waiter that was granted the lock, in `room`.
local function occupy(room, token, info)
  room.count, room.taken[info.slot or 0] = room.count + 1, true
  room.held, room.forgotten = room.held or not (info.joined or info.forgotten), room.forgotten or info.forgotten
  if info.slots == 0 then
    room.sharing = room.sharing + 1
  elseif redis.call('ZSCORE', QUEUE, token) then
    room.granted[#room.granted + 1] = token
  end
end

-- Counts the holders and the waiters that were granted the lock, except `but`: how many there are, how many share it, which
-- slots they have, which waiters have not yet claimed an exclusive grant, whether a holder was not forgotten, and whether one
-- was.
local function survey(but)
  local room = {count = 0, sharing = 0, taken = {}, granted = {}}
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    if token ~= but then
      occupy(room, token, info_of(token))
    end
  end
  return room
end

-- Whether a claim that lets so many hold the lock fits beside those in `room`, if nobody is ahead of it.
local function fits(slots, room)
  return not room.forgotten and (slots == 0 and room.sharing == room.count or room.sharing == 0 and room.count < slots)
end

-- Whether such a claim may be granted the lock now, beside those in `room`. It may not if a waiter that was granted the lock
-- before would then find too many holders when it claims it: that waiter leads, and hands the lock off after its claim.
local function has_room(slots, room)
  if not fits(slots, room) then
    return false
  end
  for _, token in ipairs(room.granted) do
    local info = info_of(token)
    if (info.slots or 1) <= room.count then
      info.leads = true
      set_info(token, info)
      return false
    end
  end
  return true
end

-- Returns an iterator over the waiters, in order, that are alive, not granted the lock yet and, as far as is known,
-- listening. Removes dead waiters that it meets.
local function waiters()
  local batch, next_one, from = {}, 1, 0
  return function()
    while true do
      if next_one > #batch then
        batch, next_one = redis.call('ZRANGE', QUEUE, from, 2 * from + 3), 1
        if #batch == 0 then
          return nil
        end
      end
      local token = batch[next_one]
      next_one = next_one + 1
      -- The waiter whose script this is (its first argument) is alive.
      if token ~= ARGV[1] and tonumber(redis.call('ZSCORE', HEARTBEATS, token) or 0) <= now then
        drop_waiter(token)
      else
        from = from + 1
        if not is_unresponsive(token) and not ends_of(token) then
          return token
        end
      end
    end
  end
end

-- The first waiters that can be granted the lock, at most `count`.
local function first_waiters(count)
  local first = {}
  local next_waiter = waiters()
  while #first < count do
    local token = next_waiter()
    if not token then
      break
    end
    first[#first + 1] = token
  end
  return first
end

-- The lowest free slot. Slot 0 is never that of a holder that shares the lock.
local function lowest_slot(slots, room)
  local slot = slots == 0 and 1 or 0
  while room.taken[slot] do
    slot = slot + 1
  end
  return slot
end

-- Has some waiters look whether the granted lock is claimed, unless enough look soon anyway. Returns the tokens of those
-- notified, separated by blanks.
local function watch()
  local notified, missing = {}, WATCHERS - due(FIRST_LOOK)
  for _, token in ipairs(missing > 0 and spread(first_waiters(PROBED)) or {}) do
    if #notified < missing and -overdue(token) > FIRST_LOOK then
      notified[#notified + 1] = token
      mail(token, FIRST_LOOK)
    end
  end
  return table.concat(notified, ' ')
end

-- In how many ms the next beat is, skipping one less than 100 ms away: this look may be that beat's, a little early.
local function next_beat()
  return (BEAT - 100 - now) % BEAT + 100
end

-- Whether a waiter was asked to look at the last beat and has not.
local function is_silent(token)
  return overdue(token) >= BEAT / 2
end

-- The first waiters that could hold the lock at once, while those ahead of them leave a slot unused or do not share it.
local function willing(room)
  local found = {}
  local last = redis.call('ZRANGE', QUEUE, -1, -1)[1]
  if last and (info_of(last).most or 1) > room.count then
    for _, token in ipairs(first_waiters(PROBED)) do
      if #found < WATCHERS and fits(info_of(token).slots or 1, room) and not is_silent(token) then
        found[#found + 1] = token
      end
    end
  end
  return found
end

-- Grants the lock to the first waiters, as far as it is free, for CLAIM_WINDOW. Returns their tokens and those of the waiters
-- notified to watch them, separated by blanks, or empty. If the next waiter leaves a slot unused, those that want the slot
-- look soon whether that waiter is still there.
local function hand_off()
  if withheld > 0 then
    return '', ''
  end
  local granted, room = {}, survey()
  for token in waiters() do
    local info = info_of(token)
    if not has_room(info.slots or 1, room) then
      for _, behind in ipairs(willing(room)) do
        if -overdue(behind) > next_beat() then
          mail(behind, next_beat())
        end
      end
      break
    end
    info.slot, info.since, info.leads = lowest_slot(info.slots, room), now, nil
    set_info(token, info)
    occupy(room, token, info)
    set_lease(token, now + CLAIM_WINDOW)
    expect(token, 0)
    granted[#granted + 1] = token
  end
  if #granted == 0 then
    return '', ''
  end
  local notified = watch()
  -- The server delivers the mail written last first.
  for at = #granted, 1, -1 do
    post(granted[at], 'granted')
  end
  return table.concat(granted, ' '), notified
end

