-- Mail to waiters, for the scripts that have something to tell them: behind the prelude.
--
-- A mail is "WRITTEN WAIT": when it was written, and after how many ms its reader should look at the lock; `granted`: that was
-- granted to it. Waking is a hint: only a claim that the server confirms makes a holder.
--
-- A mail that nobody has taken tells that its waiter is not listening: dead, or about to reconnect. It keeps its place,
-- but after GRACE the others pass it by. That a mail was taken proves little: the server hands it to a connection behind
-- which everything stands still.

-- How long a waiter that is not listening may take to come back.
local GRACE = 500
-- The longest that it may be until a waiter looks when nothing happens, and how long after a look that it has missed it keeps its place:
-- longer than a waiter is patient with a server that is away.
local REFRESH_MAX, LATE = 12000, 75000
-- How many look at the same thing, so that it is no matter if some of them fall silent too.
local WATCHERS = 4
-- A mailbox that was forgotten goes by itself, but not before its waiter counts as dead: until then it shows that it does not listen.
local MAILBOX_TTL = 90000

-- Notes when a waiter is to look next.
local function expect(token, look_in)
  redis.call('ZADD', HEARTBEATS, whole(now + look_in + LATE), token)
end

local function post(token, what)
  redis.call('RPUSH', MAILBOX .. token, whole(now) .. ' ' .. what)
  redis.call('PEXPIRE', MAILBOX .. token, MAILBOX_TTL)
end

-- Mail that is to be answered by a look.
local function mail(token, wait)
  post(token, whole(wait))
  expect(token, wait)
end

-- Since when a waiter has not taken its mail; nil if there is none.
local function unread_since(token)
  local oldest = redis.call('LINDEX', MAILBOX .. token, 0)
  return oldest and tonumber(string.match(oldest, '^%d+'))
end

local function is_unresponsive(token)
  local since = unread_since(token)
  return since and now - since >= GRACE
end

-- For how long a look of this waiter's has been due; less than 0: it is not due yet.
local function overdue(token)
  return now + LATE - tonumber(redis.call('ZSCORE', HEARTBEATS, token) or 0)
end

-- Those of these waiters that have not missed their last look.
local function awake(tokens)
  local found = {}
  for _, token in ipairs(tokens) do
    if overdue(token) < GRACE then
      found[#found + 1] = token
    end
  end
  return found
end

-- Those of the first waiters that are to look at the same thing, at most WATCHERS. Not the next ones alone, for neighbours often fall
-- silent together; nor only places that are even, or odd, because two machines may take turns in the queue.
local function spread(first)
  local watchers, from = {}, awake(first)
  local step = math.ceil(#from / WATCHERS)
  for nth = 0, WATCHERS - 1 do
    watchers[#watchers + 1] = from[#from - nth * step + nth % 2 * (1 - step % 2)]
  end
  return watchers
end

-- Has some waiters look when a lease ends, if that is earlier than they knew before and than they look. Removes none, so the caller need
-- not hand off anything.
local function tell_end(before, ends)
  local wait, first = ends - now + 1, {}
  for _, token in ipairs(ends < math.min(before, now + REFRESH_MAX) and redis.call('ZRANGE', QUEUE, 0, 99) or {}) do
    if #first < 8 * WATCHERS and not is_unresponsive(token) and not ends_of(token) then
      first[#first + 1] = token
    end
  end
  for nth, token in ipairs(spread(first)) do
    if -overdue(token) > wait then
      mail(token, wait + 20 * nth)
    end
  end
end
