-- What the scripts share: it stands in front of each of them. Every script is given the same keys, all of one lock.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms of the server's clock
--       2 info      hash: token -> JSON; of a holder {who, since, fence, slot or value, ttl, and where it is so: hand, let_go,
--                   taken}; of a waiter {who, slots, joined}, with {since, slot} once it is granted the lock, and {doubted},
--                   when it was asked for a sign of life by one behind it. slots: how many it lets hold the lock at once;
--                   value, place: what it has reserved of the sequence, and how many steps that is from its beginning; hand: no
--                   command of lockrun's runs under it (any more); let_go: it is released by hand while one does; taken: who
--                   has taken it away; it cannot be renewed
--       3 fence     the fencing token that was given out last; never expires
--       4 last      JSON {who, started, ended, status or signal} of the last run; lost: when one ended whose particulars
--                   were forgotten before
--       5 queue     sorted set: token of a waiter -> its ticket; the lowest is first
--       6 alive     sorted set: token of a waiter -> until when it counts as alive, in ms: LATE after its next look is due
--       7 box:      what the mailboxes' names begin with; a list for each waiter, which it awaits by BLPOP
--       8 sequence  hash: last -> the value that was used last, place -> how many steps it is from the beginning, fence ->
--                   of the run that used it; never expires
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

local HOLDERS, INFO, FENCE, LAST, QUEUE, ALIVE, BOX, SEQUENCE = unpack(KEYS)

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

-- A server that is out of memory refuses a script whose first change could take more of it. After any other change it lets
-- it pass; a lease must not be lost, nor a lock stay, for want of a few bytes.
local function let_pass_when_full()
  redis.call('PERSIST', HOLDERS)
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

local function post(token, wait)
  redis.call('RPUSH', BOX .. token, whole(now) .. ' ' .. whole(wait))
  redis.call('PEXPIRE', BOX .. token, BOX_TTL)
end

-- Mail that is to be answered by a look.
local function mail(token, wait)
  post(token, wait)
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

-- Whether a lease with this end, if there is one, still runs.
local function is_in_force(ends)
  return ends and (ends == 'inf' or tonumber(ends) > now)
end

-- Removes the holders whose lease has run out, and gives how many there were. One that had only been granted the lock and did
-- not claim it keeps its place, marked as absent. So do all that have missed a look, as the waiters of a whole machine have
-- that is cut off: otherwise each of them would be waited for in its turn. Whoever calls this hands over what has become free:
-- nobody else will see that it has.
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

-- The first waiters, at most `count`, that are alive, not granted the lock yet, and listening as far as we know; or only those
-- that have taken all their mail. Those ahead of them that have died are removed.
local function waiters(count, without_mail)
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
        local passed_by = without_mail and deaf_since(token) or is_absent(token)
        if not passed_by and not redis.call('ZSCORE', HOLDERS, token) then
          found[#found + 1] = token
        end
      end
    end
  end
  return found
end

-- Whether somebody who lets so many hold the lock at once can have it.
local function is_free(slots)
  return redis.call('ZCARD', HOLDERS) < slots
end

-- The lowest slot that no holder has.
local function lowest_slot()
  local taken, slot = {}, 0
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    taken[info_of(token).slot or 0] = true
  end
  while taken[slot] do
    slot = slot + 1
  end
  return slot
end

-- Sees to it that somebody looks whether the lock that was granted is claimed. When many wait, enough of them look soon
-- anyway; the rest is told. These are taken from all over the queue, and the last first: those whose turn is near would look for
-- nothing, and neighbours often fall silent together. Gives the tokens of those told, separated by blanks.
local function watch()
  local told, missing = {}, WATCHERS - due(FIRST_LOOK)
  local count = redis.call('ZCARD', QUEUE)
  for part = WATCHERS, 1, -1 do
    local at = math.ceil(count * part / WATCHERS) - 1
    local token = redis.call('ZRANGE', QUEUE, at, at)[1]
    local looks_at = tonumber(redis.call('ZSCORE', ALIVE, token) or 0) - LATE
    local is_granted = redis.call('ZSCORE', HOLDERS, token)
    if #told < missing and not is_granted and looks_at > now + FIRST_LOOK and not is_absent(token) then
      told[#told + 1] = token
    end
  end
  if #told == 0 and missing == WATCHERS then
    told = waiters(1)
  end
  for _, token in ipairs(told) do
    mail(token, FIRST_LOOK)
  end
  return table.concat(told, ' ')
end

-- Grants the lock to the first waiters, as far as it is free, for the time that they have to claim it. Gives their tokens and
-- those of the waiters that were told to watch them, separated by blanks; or nothing.
local function hand_over()
  local granted = {}
  local first = waiters(1)[1]
  while first do
    local info = info_of(first)
    if not is_free(info.slots or 1) then
      break
    end
    info.slot, info.since = lowest_slot(), now
    set_info(first, info)
    redis.call('ZADD', HOLDERS, whole(now + CLAIM_WINDOW), first)
    mail(first, 0)
    granted[#granted + 1] = first
    first = waiters(1)[1]
  end
  return #granted > 0 and {table.concat(granted, ' '), watch()} or {}
end

-- Makes `token` a holder with these particulars, beside what all holders have. Gives its fence: greater than the last one, and,
-- should that be forgotten, than any that was given out before now.
local function take_hold(token, ttl, info)
  local fence = math.max((tonumber(redis.call('GET', FENCE)) or 0) + 1, now)
  redis.call('SET', FENCE, whole(fence))
  info.since, info.fence, info.ttl = now, fence, ttl
  set_info(token, info)
  return fence
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

-- A holder: how long it has been one, when its lease ends (-1: never), its particulars, and its token; all of it as a reply.
local function describe(token, ends)
  local info = redis.call('HGET', INFO, token) or '{}'
  local since = cjson.decode(info).since or now
  return {now - since, ends == 'inf' and -1 or ends - now, info, token}
end

-- The holder with the lease that ends first, but has not ended yet, described.
local function holder()
  local first = redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1] and describe(first[1], first[2]) or {}
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended.
local function note(info, ending)
  ending.who, ending.started, ending.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(ending))
end

