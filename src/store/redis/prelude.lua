-- Shared by all scripts and sent in front of each, followed by `queue.lua` where a script deals with waiters. Every script gets
-- the same keys, all of one lock.
--
-- KEYS  1 holders   sorted set: token -> end of its lease, in ms of the server's clock
--       2 info      hash: token -> JSON {who, ttl} and, where they apply, {slots, once, hand, request}; of a holder also {since,
--                   fence, slot} and, where they apply, {value, place, kept, released, revoked}; of a waiter {joined}
--                   ttl: the length of its lease, in ms; of a waiter, the length of its place
--                   slots: how many it lets hold the lock at once; 0: all that share it
--                   once: once its run has succeeded, no other run is wanted for so many ms after it began
--                   hand: no command of lockrun's runs under it (any more)
--                   request: which request acquired the lock, or waits for it, under a token of the user's own
--                   value, place: what it has reserved of the sequence, and how many steps that is from the beginning
--                   kept: its run has ended and is recorded as the last run
--                   released: it was released by hand while its command runs
--                   revoked: who revoked it; a revoked lease cannot be renewed
--       3 fence     the last fencing token; never expires
--       4 last      JSON {who, started, ended, status or signal} of the last run
--                   done: when the last run that ended with 0 by itself began; once: when the last of those began after which
--                   no other is wanted for a while; till: until when that is so
--                   request: which request by hand released it
--       5 queue     sorted set: token of a waiter -> its ticket; the lowest is first
--       6 places    sorted set: token of a waiter -> end of its place, in ms
--       7 mailbox:  prefix of the mailboxes: a list per waiter, on which it blocks with BLPOP; see `queue.lua`
--       8 sequence  hash: last -> the value used last, place -> how many steps it is from the beginning, fence -> of the run
--                   that used it; never expires
--       9 failover  see `failover.lua`; only where failovers can happen
-- ARGV  first       the number of the database where the keys are; it is removed here, so each script counts its own from 1.
--                   After a blank, for how many ms after the start of the server nothing is granted, if the URL says so

-- `script.rs` sends `C(` for each call, and shorter names.
local C = redis.call
-- A script travels with the connection's SELECT, and runs even if the server rejects that. So it selects the database itself:
-- otherwise it would change another database's locks.
local database, grace = string.match(table.remove(ARGV, 1), '^(%d+) ?(%d*)$')
if database ~= '0' then
  redis.call('SELECT', database)
end
local HOLDERS, INFO, FENCE, LAST, QUEUE, PLACES, MAILBOX, SEQUENCE, FAILOVER = unpack(KEYS)

-- How long an expired lease is remembered, in ms: longer than any place lasts.
local REMEMBER = 90000
-- In the mailbox of a cancelled token: a request under it that arrives later acquires nothing.
local CANCELLED = 'cancelled'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Lua would print a large number as 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

-- For how many ms nothing is granted yet, after a start of the server or a failover.
local withheld = 0
if grace ~= '' then
  -- The uptime is the difference of two times in whole seconds, so it may be almost a second too long.
  local uptime = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  withheld = math.max(grace - (uptime - 1) * 1000, 0)
end
-- Notes the length of a lease or a place that begins now, where failovers can happen: see `failover.lua`.
local note_lease = function() end

-- When the lease of `token` ends (inf: never); nil if it has none.
local function ends_of(token)
  return tonumber(redis.call('ZSCORE', HOLDERS, token))
end

local function set_lease(token, ends)
  redis.call('ZADD', HOLDERS, whole(ends), token)
end

-- Decodes JSON; returns an empty table if the text is not an object.
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

-- Whether nothing but the lease is known of a holder.
local function is_lost(info)
  return not (info.fence or info.revoked)
end

-- Fails if the particulars of a holder are lost: nobody knows what still runs under the lock, so nobody may acquire it.
local function refuse_if_lost()
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf')) do
    if is_lost(info_of(token)) then
      error('nothing is known of a holder but its lease')
    end
  end
end

-- How far a fence is ahead of the clock at least, in ms, and how far at least in any term like this one: see `failover.lua`.
local fence_lead, epoch_lead = 0, 0

-- The next fence: greater than the last one and, in case that is lost, greater than any given out before now. It is text,
-- because it may exceed the integers that Lua represents exactly. Fails if the server cannot count further.
local function next_fence()
  if redis.call('INCR', FENCE) < now + fence_lead then
    redis.call('SET', FENCE, whole(now + fence_lead))
  end
  return redis.call('GET', FENCE)
end

-- Makes `token` a holder with these particulars, and adds those that every holder has.
local function take_hold(token, fence, ttl, info)
  info.since, info.fence, info.ttl = now, fence, ttl
  set_info(token, info)
end

-- Restarts a holder's lease: `ttl` from now. A revoked holder that asks again gets this too, because the reply that the lock
-- is its own promises a whole lease; its renewals will report that it was revoked.
local function begin_lease(token, ttl, info)
  if info.ttl ~= ttl then
    info.ttl = ttl
    set_info(token, info)
  end
  set_lease(token, ttl == 0 and math.huge or now + ttl)
  note_lease(ttl, info.hand)
end

-- Lets the holders' keys expire some time after the last lease, so that a crash leaves nothing behind. They are kept that
-- long because a run that has lost its lease is recorded all the same.
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

-- A holder as a reply: how long it has held, in how many ms its lease ends (-1: never), its particulars and its token.
local function describe(token, ends)
  local info = redis.call('HGET', INFO, token) or '{}'
  local since = tonumber(decoded(info).since) or now
  return {now - since, ends == 'inf' and -1 or ends - now, info, token}
end

-- Describes the holder whose lease ends first, among those that have not ended.
local function holder()
  local first = redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1] and describe(first[1], first[2]) or {}
end

local function last_run()
  local last = decoded(redis.call('GET', LAST))
  last.ended, last.done, last.once = tonumber(last.ended) or 0, tonumber(last.done), tonumber(last.once)
  return last
end
