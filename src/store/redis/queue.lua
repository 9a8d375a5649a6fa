-- The queue, for the scripts that hand the lock to waiters or stand in it: behind the prelude and `mail.lua`.
--
-- Of each waiter it is known when it will look at the lock next. Each look passes on a lock whose lease or grant has run
-- out. So it is enough if any of them looks in time.

-- For how long a waiter that was granted the lock may take to claim it.
local CLAIM_WINDOW = 1400
-- After which part of that time others should look whether it is claimed.
local FIRST_LOOK = 600
-- How often waiters look that could use a slot which those ahead of them leave unused: all at the same times.
local BEAT = 800
-- How many waiters are asked for a sign of life at once.
local PROBED = 100
-- More than any number of slots.
local MANY = 1e6
-- How often a waiter looks when nothing happens.
local REFRESH = 8000

-- How many waiters will look within so many ms, as far as we know.
local function due(within)
  return redis.call('ZCOUNT', HEARTBEATS, '(' .. whole(now + LATE), whole(now + within + LATE))
end

-- The others pass this waiter by until it looks again.
local function mark_unresponsive(token)
  redis.call('LPUSH', MAILBOX .. token, whole(now - GRACE) .. ' 0')
  redis.call('PEXPIRE', MAILBOX .. token, MAILBOX_TTL)
end

-- Takes a waiter out of the queue, with what is known about it and what was granted to it.
local function drop_waiter(token)
  redis.call('ZREM', HOLDERS, token)
  remove_waiter(token)
  redis.call('HDEL', INFO, token)
end

-- Removes the holders whose lease has run out, and gives how many there were. One that had only been granted the lock and did
-- not claim it keeps its place, marked as unresponsive. So do all that have missed a look, as the waiters of a whole machine have
-- that is cut off: otherwise each of them would be waited for in its turn. The caller hands over what has become free: nobody else
-- will see that it has.
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
    -- Later than the ends that a waiter has seen before it saw the holder, and no more: where the server has gone back to an older
    -- state, the holder after this one may be forgotten.
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

-- Notes in `room` that one more holds the lock, or was granted it.
local function occupy(room, token, info)
  room.count, room.taken[info.slot or 0] = room.count + 1, true
  room.held, room.forgotten = room.held or not (info.joined or info.forgotten), room.forgotten or info.forgotten
  if info.slots == 0 then
    room.sharing = room.sharing + 1
  elseif redis.call('ZSCORE', QUEUE, token) then
    room.granted[#room.granted + 1] = token
  end
end

-- How many hold the lock, or were granted it, how many of them share it, which slots they have, who was granted one and has not
-- claimed it, whether somebody holds it already that was not forgotten, and whether one was. Without `but`.
local function survey(but)
  local room = {count = 0, sharing = 0, taken = {}, granted = {}}
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    if token ~= but then
      occupy(room, token, info_of(token))
    end
  end
  return room
end

-- Whether one that lets so many hold the lock may hold it beside those, if nobody is ahead of it.
local function fits(slots, room)
  return not room.forgotten and (slots == 0 and room.sharing == room.count or room.sharing == 0 and room.count < slots)
end

-- Whether one that lets so many hold the lock may be granted it now, beside those that hold it or were granted it. Not if a waiter
-- that was granted it before would then find too many when it claims it: that one leads, and hands the lock on when it has.
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

-- The waiters that are alive, not granted the lock yet, and listening as far as we know. A function that gives one after the other,
-- in their turn. Those among them that have died are removed.
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
      -- The one that asks, by the first argument, is alive.
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

-- The first of these waiters, at most so many.
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

-- The lowest slot that is free. Slot 0 is of one that does not share the lock.
local function lowest_slot(slots, room)
  local slot = slots == 0 and 1 or 0
  while room.taken[slot] do
    slot = slot + 1
  end
  return slot
end

-- Has some waiters look whether the lock that was granted is claimed, unless enough look soon anyway. Returns the tokens of those
-- told, separated by blanks.
local function watch()
  local told, missing = {}, WATCHERS - due(FIRST_LOOK)
  for _, token in ipairs(missing > 0 and spread(first_waiters(8 * WATCHERS)) or {}) do
    if #told < missing and -overdue(token) > FIRST_LOOK then
      told[#told + 1] = token
      mail(token, FIRST_LOOK)
    end
  end
  return table.concat(told, ' ')
end

-- In how many ms the next beat is; not the one that this look may be a little early for.
local function next_beat()
  return (BEAT - 100 - now) % BEAT + 100
end

-- Whether a waiter has not looked though it was asked to at the last beat.
local function is_silent(token)
  return overdue(token) >= BEAT / 2
end

-- The first of the waiters that could hold the lock at once, while those ahead of them leave a slot unused, or do not share it.
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

-- Grants the lock to the first waiters, as far as it is free, for the time that they have to claim it. Gives their tokens and
-- those of the waiters that are to watch them, separated by blanks, or empty. If the next one leaves a slot unused, those
-- that want it look soon whether it is still there.
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
  local told = watch()
  -- What is mailed last leaves the server first.
  for at = #granted, 1, -1 do
    post(granted[at], 'granted')
  end
  return table.concat(granted, ' '), told
end

