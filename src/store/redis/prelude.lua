-- What the scripts share: it stands in front of each of them. Every script is given the same keys, all of one lock.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms of the server's clock
--       2 info      hash: token -> JSON; of a holder {who, since, fence, ttl, and where it is so: hand, let_go, taken}, of a
--                   waiter {who, joined}. hand: no command of lockrun's runs under it (any more); let_go: it is released by hand
--                   while one does; taken: who has taken it away; it cannot be renewed
--       3 fence     the fencing token that was given out last; never expires
--       4 last      JSON {who, started, ended, status or signal} of the last run
--       5 queue     sorted set: token of a waiter -> its ticket; the lowest is first
--       6 alive     sorted set: token of a waiter -> until when it counts as alive, in ms
--       7 box:      what the mailboxes' names begin with; a list for each waiter, which it awaits by BLPOP
--
-- A mail is "WRITTEN WAIT": when it was written, and after how many ms its reader should look at the lock; 0 says that
-- the lock has been granted to it. Waking is a hint: only a claim by the acquire script makes a holder.
--
-- A mail that nobody has taken tells that its waiter is not listening: dead, or about to reconnect. It keeps its place,
-- but after GRACE the others pass it by.

local HOLDERS, INFO, FENCE, LAST, QUEUE, ALIVE, BOX = unpack(KEYS)

-- For how long a waiter that was granted the lock may take to claim it, and one that is not listening to come back.
local CLAIM_WINDOW, GRACE = 1500, 500
-- For how long a waiter counts as alive after each sign of life. It gives one every few seconds.
local ALIVE_FOR = 20000
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

local function mail(token, wait)
  redis.call('RPUSH', BOX .. token, whole(now) .. ' ' .. whole(wait))
  redis.call('PEXPIRE', BOX .. token, BOX_TTL)
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

-- Removes the holders whose lease has run out, and gives how many there were. One that had only been granted the lock and did
-- not claim it keeps its place, marked as absent.
local function drop_ended_leases()
  local ended = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now)
  for _, token in ipairs(ended) do
    redis.call('ZREM', HOLDERS, token)
    if redis.call('ZSCORE', QUEUE, token) then
      redis.call('LPUSH', BOX .. token, whole(now - GRACE) .. ' 0')
      redis.call('PEXPIRE', BOX .. token, BOX_TTL)
    else
      redis.call('HDEL', INFO, token)
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

-- Grants the lock, if it is free, to the first waiter, for the time that it has to claim it, and tells the next one when
-- to look whether it did. Gives the two tokens, or nothing.
local function hand_over()
  if redis.call('ZCARD', HOLDERS) > 0 then
    return {}
  end
  local first = waiters(2)
  if first[1] then
    redis.call('ZADD', HOLDERS, whole(now + CLAIM_WINDOW), first[1])
    local info = info_of(first[1])
    info.since = now
    set_info(first[1], info)
    mail(first[1], 0)
  end
  if first[2] then
    mail(first[2], CLAIM_WINDOW)
  end
  return first
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

-- The holder with the lease that ends first, described.
local function holder()
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  return first[1] and describe(first[1], first[2]) or {}
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended.
local function note(info, ending)
  ending.who, ending.started, ending.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(ending))
end

