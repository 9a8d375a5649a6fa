-- What the scripts share: it stands in front of each of them; where waiters are concerned, with `mail.lua` and `queue.lua` behind it. Every
-- script is given the same keys, all of one lock.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms of the server's clock
--       2 info      hash: token -> JSON; of a holder {who, since, fence, slot, ttl, and where it is so: slots, several, once, value, place, hand,
--                   kept, released, revoked, forgotten, request}; of a waiter {who, slots, most, joined}, with {since, slot} once it
--                   is granted the lock, and {leads, probed}. slots: how many it lets hold the lock at once; 0: all that share it, which
--                   is kept of holders too; most: the greatest such number up to its place, or MANY; several: a holder has said
--                   that there are several slots; once: for how many ms no other run is wanted once it has succeeded; leads: others wait for it to claim the lock; probed: when others were
--                   asked for a sign of life for its sake; request: which request of a user under a token of the user's own it
--                   was that took the lock;
--                   value, place: what it has reserved of the sequence, and how many steps that is from its beginning; hand: no
--                   command of lockrun's runs under it (any more); kept: its run has ended and is written down; released: it
--                   is released by hand while one does; revoked: who has revoked it; forgotten: a command ran under it, it was
--                   forgotten, and a waiter that had seen it put it back; what is revoked or was forgotten cannot be renewed
--       3 fence     the fencing token that was given out last; never expires
--       4 last      JSON {who, started, ended, status or signal} of the last run; lost: when a hold ended that is not
--                   written down, or what makes the end of that run later than the one before it; done: when the last run began that has ended with 0 by itself; till: until when no other is
--                   wanted
--       5 queue     sorted set: token of a waiter -> its ticket; the lowest is first
--       6 heartbeats  sorted set: token of a waiter -> until when it counts as alive, in ms: LATE after its next look is due
--       7 mailbox:  what the mailboxes' names begin with; a list for each waiter, which it awaits by BLPOP
--       8 sequence  hash: last -> the value that was used last, place -> how many steps it is from the beginning, fence ->
--                   of the run that used it; never expires
--       9 failover  what `failover.lua` needs; only where there can be failovers

-- What is sent says `C(` for each call, and has shorter names, see `script.rs`.
local C = redis.call
local HOLDERS, INFO, FENCE, LAST, QUEUE, HEARTBEATS, MAILBOX, SEQUENCE, FAILOVER = unpack(KEYS)

-- For how long a lease that has run out is remembered.
local REMEMBER = 90000
-- In the mailbox of a token that was cancelled: what comes under it later was long on its way, and gets nothing.
local CANCELLED = 'cancelled'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Lua would write a large number as 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

-- For how many ms nothing is granted yet, after a failover.
local withheld = 0

-- When this one's lease ends (inf: never); nil if it neither holds the lock nor was granted it.
local function ends_of(token)
  return tonumber(redis.call('ZSCORE', HOLDERS, token))
end

local function set_lease(token, ends)
  redis.call('ZADD', HOLDERS, whole(ends), token)
end

-- What a text in JSON says; nothing, if it is none.
local function decoded(text)
  local is_json, value = pcall(cjson.decode, text or '{}')
  return is_json and type(value) == 'table' and value or {}
end

local function info_of(token)
  return decoded(redis.call('HGET', INFO, token))
end

local function set_info(token, info)
  redis.call('HSET', INFO, token, cjson.encode(info))
end

-- Takes it out of the queue, if it is in it.
local function remove_waiter(token)
  if redis.call('ZREM', QUEUE, token) == 1 then
    redis.call('ZREM', HEARTBEATS, token)
    redis.call('DEL', MAILBOX .. token)
  end
end

-- Whether nothing is known of a holder but its lease.
local function is_lost(token, info)
  return not (info.fence or info.slots or info.revoked or redis.call('ZSCORE', QUEUE, token))
end

-- Fails if so much is lost of a holder: what works under the lock cannot be told, so nobody gets it.
local function refuse_if_lost()
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf')) do
    if is_lost(token, info_of(token)) then
      error('nothing is known of a holder but its lease')
    end
  end
end

-- By how much a fence is ahead of the clock at least: where another server may become the primary, its clock may be behind by as much.
local FENCE_LEAD = FAILOVER and 60000 or 0

-- The fence after the last one: greater than that, and, should that be forgotten, than any that was given out before now. A text,
-- because it may be greater than any number that Lua can count to. Fails if no greater one is left.
local function next_fence()
  if redis.call('INCR', FENCE) < now + FENCE_LEAD then
    redis.call('SET', FENCE, whole(now + FENCE_LEAD))
  end
  return redis.call('GET', FENCE)
end

-- Makes `token` a holder with these particulars, beside what all holders have.
local function take_hold(token, ttl, info)
  info.since, info.fence, info.ttl = info.since or now, next_fence(), ttl
  set_info(token, info)
end

-- Begins a holder's lease anew, for `ttl` from now. One that was revoked, too, if it is asked for again: the answer that the lock is
-- its own promises a whole lease, and its renewals will say that it was revoked.
local function begin_lease(token, ttl, info)
  if info.ttl ~= ttl then
    info.ttl = ttl
    set_info(token, info)
  end
  set_lease(token, ttl == 0 and math.huge or now + ttl)
end

-- Lets the keys of the holders expire after the last lease, so that a crash leaves nothing behind. Not at once: that a lease is
-- there and has run out shows that the lock was not simply forgotten. (A waiter's particulars are needed for longer than it waits
-- without a sign of life, which is less.)
local function expire_holders()
  local last = redis.call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]
  for _, key in ipairs(last and {HOLDERS, INFO} or {INFO}) do
    if last == 'inf' then
      redis.call('PERSIST', key)
    else
      redis.call('PEXPIREAT', key, whole((last or now) + REMEMBER))
    end
  end
end

-- A holder: how long it has been one, when its lease ends (-1: never), its particulars, and its token; all of it as a reply.
local function describe(token, ends)
  local info = redis.call('HGET', INFO, token) or '{}'
  local since = tonumber(decoded(info).since) or now
  return {now - since, ends == 'inf' and -1 or ends - now, info, token}
end

-- The holder whose lease ends first, but has not ended yet, described.
local function holder()
  local first = redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1] and describe(first[1], first[2]) or {}
end

-- The last run.
local function last_run()
  local last = decoded(redis.call('GET', LAST))
  last.ended, last.lost, last.done = tonumber(last.ended) or 0, tonumber(last.lost), tonumber(last.done)
  return last
end

-- When a hold ended last: it rises with each that ends, whatever the clock says.
local function last_end()
  local last = last_run()
  return math.max(last.ended, last.lost or 0)
end

-- Notes that a hold has ended at this time, or to a waiter that has seen it, it would look as if it were forgotten.
local function note_end(at)
  local last = last_run()
  -- As text, since a number would be rounded.
  last.lost = whole(math.max(at, last_end() + 1))
  redis.call('SET', LAST, cjson.encode(last))
end
