-- What the scripts share: it stands in front of each of them; where waiters are concerned, with `queue.lua` behind it. Every script is given the same keys, all of one lock.
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

local HOLDERS, INFO, FENCE, LAST, QUEUE, ALIVE, BOX, SEQUENCE = unpack(KEYS)

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

-- A server that is out of memory refuses a script whose first change could take more of it. After any other change, and be it
-- in vain, it lets it pass; a lease must not be lost, nor a lock stay, for want of a few bytes.
local function let_pass_when_full()
  redis.call('DEL', BOX)
end

-- The leases as they were found: token, end, token, end, ..., those that end first in front. And as this script leaves them, a
-- token's end (inf: never), and how many there are: they are read from the server once.
local found, ends_of, held = redis.call('ZRANGE', HOLDERS, 0, -1, 'WITHSCORES'), {}, 0
for at = 1, #found, 2 do
  ends_of[found[at]] = tonumber(found[at + 1])
  held = held + 1
end

local function set_lease(token, ends)
  redis.call('ZADD', HOLDERS, whole(ends), token)
  held = ends_of[token] and held or held + 1
  ends_of[token] = ends
end

local function end_lease(token)
  if ends_of[token] then
    redis.call('ZREM', HOLDERS, token)
    ends_of[token], held = nil, held - 1
  end
end

-- Whether this one holds the lock, or was granted it.
local function is_in_force(token)
  return ends_of[token] and ends_of[token] > now
end

-- Whose lease ends next.
local function first_to_end()
  local first
  for token, ends in pairs(ends_of) do
    if ends > now and (not first or ends < ends_of[first] or ends == ends_of[first] and token < first) then
      first = token
    end
  end
  return first
end

local function info_of(token)
  local info = redis.call('HGET', INFO, token)
  return info and cjson.decode(info) or {}
end

local function set_info(token, info)
  redis.call('HSET', INFO, token, cjson.encode(info))
end

-- Takes it out of the queue, if it is in it.
local function forget_waiter(token)
  if redis.call('ZREM', QUEUE, token) == 1 then
    redis.call('ZREM', ALIVE, token)
    redis.call('DEL', BOX .. token)
  end
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

-- Lets the keys of the holders expire after the last lease, so that a crash leaves nothing behind. Not at once: that a lease is
-- there and has run out shows that the lock was not simply forgotten. (A waiter's particulars are needed for longer than it waits
-- without a sign of life, which is less.)
local function expire_holders()
  local last = now
  for _, ends in pairs(ends_of) do
    last = math.max(last, ends)
  end
  for _, key in ipairs(held > 0 and {HOLDERS, INFO} or {INFO}) do
    if last == math.huge then
      redis.call('PERSIST', key)
    else
      redis.call('PEXPIREAT', key, whole(last + REMEMBER))
    end
  end
end

-- A holder: how long it has been one, when its lease ends (-1: never), its particulars, and its token; all of it as a reply.
local function describe(token)
  local info, ends = redis.call('HGET', INFO, token) or '{}', ends_of[token]
  local since = cjson.decode(info).since or now
  return {now - since, ends == math.huge and -1 or ends - now, info, token}
end

-- The holder whose lease ends first, described.
local function holder()
  local first = first_to_end()
  return first and describe(first) or {}
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended.
local function note(info, ending)
  ending.who, ending.started, ending.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(ending))
end

