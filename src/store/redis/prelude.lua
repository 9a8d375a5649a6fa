-- What the scripts share: it stands in front of each of them. Every script is given the same keys, all of one lock.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms of the server's clock
--       2 info      hash: token -> JSON {who, since, fence, ttl}; of holders, and {who} of waiters
--       3 fence     the fencing token that was given out last; never expires
--       4 last      JSON {who, started, ended, status or signal} of the last run
--       5 queue     sorted set: token of a waiter -> its ticket; the lowest is first
--       6 alive     sorted set: token of a waiter -> until when it counts as alive, in ms: LATE after its next look is due
--       7 box:      what the mailboxes' names begin with; a list for each waiter, which it awaits by BLPOP
--
-- A mail is "WRITTEN WAIT": when it was written, and after how many ms its reader should look at the lock; 0: at once, as
-- when the lock has been granted to it. Waking is a hint: only a claim by the acquire script makes a holder.
--
-- Of each waiter it is known when it will look at the lock next. Whoever looks passes on a lock whose lease or grant has run
-- out. So it is enough if in time somebody looks, no matter who.
--
-- A mail that nobody has taken tells that its waiter is not listening: dead, or about to reconnect. It keeps its place,
-- but after GRACE the others pass it by. That a mail was taken proves little: the server hands it to a connection behind
-- which everything stands still.

local HOLDERS, INFO, FENCE, LAST, QUEUE, ALIVE, BOX = unpack(KEYS)

-- For how long a waiter that was granted the lock may take to claim it, and one that is not listening to come back.
local CLAIM_WINDOW, GRACE = 1400, 500
-- After which part of that time somebody should look whether it is claimed, and how many should.
local FIRST_LOOK, WATCHERS = 600, 2
-- How often a waiter looks when nothing happens, and how long after a look that it has missed it still counts as alive.
local REFRESH, LATE = 8000, 20000
-- A mailbox that was forgotten goes by itself.
local BOX_TTL = 60000
-- For how long a lease that has run out is remembered.
local REMEMBER = 60000
-- In the mailbox of a token that was withdrawn: what comes under it later was long on its way, and gets nothing.
local WITHDRAWN, WITHDRAWN_TTL = 'withdrawn', 300000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Lua would write a large number as 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

local function info_of(token)
  local info = redis.call('HGET', INFO, token)
  return info and cjson.decode(info) or {}
end

local function set_info(token, info)
  redis.call('HSET', INFO, token, cjson.encode(info))
end

-- Notes when a waiter is to look next.
local function expect(token, look_in)
  redis.call('ZADD', ALIVE, whole(now + look_in + LATE), token)
end

-- How many waiters will look within so many ms, as far as we know.
local function due(within)
  return redis.call('ZCOUNT', ALIVE, '(' .. whole(now + LATE), whole(now + within + LATE))
end

local function mail(token, wait)
  redis.call('RPUSH', BOX .. token, whole(now) .. ' ' .. whole(wait))
  redis.call('PEXPIRE', BOX .. token, BOX_TTL)
  expect(token, wait)
end

-- Since when a waiter has not taken its mail; nil if there is none.
local function deaf_since(token)
  local oldest = redis.call('LINDEX', BOX .. token, 0)
  return oldest and tonumber(string.match(oldest, '^%d+'))
end

local function is_absent(token)
  local since = deaf_since(token)
  return since and now - since >= GRACE
end

local function forget_waiter(token)
  redis.call('ZREM', QUEUE, token)
  redis.call('ZREM', ALIVE, token)
  redis.call('DEL', BOX .. token)
end

-- The others pass this waiter by until it looks again.
local function mark_absent(token)
  redis.call('LPUSH', BOX .. token, whole(now - GRACE) .. ' 0')
  redis.call('PEXPIRE', BOX .. token, BOX_TTL)
end

-- Removes the holders whose lease has run out, and gives how many there were. One that had only been granted the lock and did
-- not claim it keeps its place, marked as absent. So do all that have missed a look, as the waiters of a whole machine have
-- that is cut off: otherwise each of them would be waited for in its turn.
local function drop_ended_leases()
  local ended = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now)
  local unclaimed = false
  for _, token in ipairs(ended) do
    redis.call('ZREM', HOLDERS, token)
    if redis.call('ZSCORE', QUEUE, token) then
      unclaimed = true
    else
      redis.call('HDEL', INFO, token)
    end
  end
  if unclaimed then
    for _, token in ipairs(redis.call('ZRANGEBYSCORE', ALIVE, now, whole(now - GRACE + LATE))) do
      if not is_absent(token) then
        mark_absent(token)
      end
    end
  end
  return #ended
end

-- The first waiters, at most `count`, that are alive, listening as far as we know, and not `but`. Those ahead of them that
-- have died are removed.
local function waiters(count, but)
  local found, from = {}, 0
  while #found < count do
    local batch = redis.call('ZRANGE', QUEUE, from, from + 15)
    if #batch == 0 then
      break
    end
    for _, token in ipairs(batch) do
      if #found == count then
        break
      end
      if tonumber(redis.call('ZSCORE', ALIVE, token) or 0) <= now then
        forget_waiter(token)
        redis.call('HDEL', INFO, token)
      else
        from = from + 1
        if token ~= but and not is_absent(token) then
          found[#found + 1] = token
        end
      end
    end
  end
  return found
end

-- Sees to it that somebody looks whether the lock that was granted is claimed. When many wait, enough of them look soon
-- anyway; the rest is told. These are taken from all over the queue, and the last first: those whose turn is near would look for
-- nothing, and neighbours often fall silent together. Gives the tokens of those told, separated by blanks.
local function watch(granted)
  local told, missing = {}, WATCHERS - due(FIRST_LOOK)
  local count = redis.call('ZCARD', QUEUE)
  for part = WATCHERS, 1, -1 do
    local at = math.ceil(count * part / WATCHERS) - 1
    local token = redis.call('ZRANGE', QUEUE, at, at)[1]
    local looks_at = tonumber(redis.call('ZSCORE', ALIVE, token) or 0) - LATE
    if #told < missing and token ~= granted and looks_at > now + FIRST_LOOK and not is_absent(token) then
      told[#told + 1] = token
    end
  end
  if #told == 0 and missing == WATCHERS then
    told = waiters(1, granted)
  end
  for _, token in ipairs(told) do
    mail(token, FIRST_LOOK)
  end
  return table.concat(told, ' ')
end

-- Grants the lock, if it is free, to the first waiter, for the time that it has to claim it. Gives its token and those of the
-- waiters that were told to watch it, or nothing.
local function hand_over()
  local first = redis.call('ZCARD', HOLDERS) == 0 and waiters(1)[1]
  if not first then
    return {}
  end
  redis.call('ZADD', HOLDERS, whole(now + CLAIM_WINDOW), first)
  set_info(first, {who = info_of(first).who, since = now})
  mail(first, 0)
  return {first, watch(first)}
end

-- Lets the keys expire after the last lease and the last sign of life, so that a crash leaves nothing behind. Not at once: that
-- a lease is there and has run out shows that the lock was not simply forgotten.
local function expire_keys()
  local last_lease = redis.call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2] or '0'
  local last_life = redis.call('ZREVRANGE', ALIVE, 0, 0, 'WITHSCORES')[2] or '0'
  if last_lease == 'inf' then
    redis.call('PERSIST', HOLDERS)
    redis.call('PERSIST', INFO)
  else
    redis.call('PEXPIREAT', HOLDERS, whole(last_lease + REMEMBER))
    redis.call('PEXPIREAT', INFO, whole(math.max(tonumber(last_lease), tonumber(last_life)) + REMEMBER))
  end
  redis.call('PEXPIREAT', QUEUE, whole(last_life))
  redis.call('PEXPIREAT', ALIVE, whole(last_life))
end

-- How long the holder with the lease that ends first has had it, when that ends (-1: never), and its particulars.
local function holder()
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if not first[1] then
    return {}
  end
  local info = redis.call('HGET', INFO, first[1]) or '{}'
  local since = cjson.decode(info).since or now
  local expires_in = first[2] == 'inf' and -1 or first[2] - now
  return {now - since, expires_in, info}
end

