-- Mail that scripts send to waiters. Sent after the prelude.
--
-- A mail is "WRITTEN WAIT": when it was written, and after how many ms its reader should look at the lock; in place of WAIT,
-- `granted`: the lock was granted to the reader. Mail is only a hint: a waiter becomes a holder only by a claim that the
-- server confirms.
--
-- Unread mail shows that its waiter is not listening: it is dead, or about to reconnect. It keeps its place, but after GRACE
-- the others pass it over. Read mail proves little: the server hands it to a connection behind which everything may stand
-- still.

-- How long a waiter that is not listening may take to come back.
local GRACE = 500
-- The longest time between two looks of a waiter when nothing happens, and how long it keeps its place after a look that it
-- has missed: longer than a waiter sits out a server that is away, which is a minute and up to two times --store-timeout. With
-- a --store-timeout above 7.5 s, a waiter may lose its place in the longest of such outages.
local REFRESH_MAX, LATE = 12000, 75000
-- How many waiters watch the same thing, so that it does not matter if some of them fall silent too.
local WATCHERS = 4
-- How many waiters are asked for a sign of life at once, and from how many of the first the watchers are picked.
local PROBED = 100
-- An abandoned mailbox expires by itself, but not before its waiter counts as dead: until then it shows that nobody listens.
local MAILBOX_TTL = 90000

-- Notes when a waiter is to look next.
local function expect(token, look_in)
  redis.call('ZADD', HEARTBEATS, whole(now + look_in + LATE), token)
end

local function post(token, what)
  redis.call('RPUSH', MAILBOX .. token, whole(now) .. ' ' .. what)
  redis.call('PEXPIRE', MAILBOX .. token, MAILBOX_TTL)
end

-- Mail that the waiter answers with a look.
local function mail(token, wait)
  post(token, whole(wait))
  expect(token, wait)
end

-- Since when the oldest mail of a waiter is unread; nil if there is none.
local function unread_since(token)
  local oldest = redis.call('LINDEX', MAILBOX .. token, 0)
  return oldest and tonumber(string.match(oldest, '^%d+'))
end

local function is_unresponsive(token)
  local since = unread_since(token)
  return since and now - since >= GRACE
end

-- For how long a look of this waiter has been overdue; negative: it is not due yet.
local function overdue(token)
  return now + LATE - tonumber(redis.call('ZSCORE', HEARTBEATS, token) or 0)
end

-- Whether a waiter may be relied on to watch something: it has not missed its last look, reads its mail, and is not granted the
-- lock.
local function can_watch(token)
  return overdue(token) < GRACE and not is_unresponsive(token) and not ends_of(token)
end

-- Picks the waiters, at most WATCHERS, that are to watch the same thing: from the first of these that can, and the last in the
-- queue, because all of the first may have died a moment ago. Not only the very next ones, because neighbours often fall silent
-- together; nor only even or only odd places, because two machines may alternate in the queue.
local function spread(first)
  local watchers, from = {}, {}
  for _, token in ipairs(first) do
    if #from < 8 * WATCHERS and can_watch(token) then
      from[#from + 1] = token
    end
  end
  local last = redis.call('ZRANGE', QUEUE, -1, -1)[1]
  if last and last ~= from[#from] and can_watch(last) then
    from[#from + 1] = last
  end
  local step = math.ceil(#from / WATCHERS)
  for nth = 0, WATCHERS - 1 do
    watchers[#watchers + 1] = from[#from - nth * step + nth % 2 * (1 - step % 2)]
  end
  return watchers
end

-- Has some waiters look when a lease ends, if that is earlier than the end that they know and than their next look. Removes
-- no holder, so the caller need not hand anything off.
local function tell_end(before, ends)
  if ends >= math.min(before, now + REFRESH_MAX) then
    return
  end
  local wait = ends - now + 1
  for nth, token in ipairs(spread(redis.call('ZRANGE', QUEUE, 0, PROBED - 1))) do
    if -overdue(token) > wait then
      mail(token, wait + 20 * nth)
    end
  end
end
