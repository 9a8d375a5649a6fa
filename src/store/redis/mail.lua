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
-- The longest that it may be until a waiter looks when nothing happens, and how long after a look that it has missed it still counts as
-- alive.
local REFRESH_MAX, LATE = 12000, 20000
-- A mailbox that was forgotten goes by itself.
local MAILBOX_TTL = 60000

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

-- Tells waiters when a lease ends, if that is earlier than they were told before and than they look: the first two that listen, since one
-- may have died unnoticed. Removes none, so the caller need not hand off anything.
local function tell_end(before, ends)
  local told = 0
  for _, token in ipairs(ends < math.min(before, now + REFRESH_MAX) and redis.call('ZRANGE', QUEUE, 0, 99) or {}) do
    if told < 2 and not is_unresponsive(token) and not ends_of(token) then
      told = told + 1
      mail(token, ends - now + 1 + 20 * told)
    end
  end
end
