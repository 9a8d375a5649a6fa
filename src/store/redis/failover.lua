-- What a failover may have lost, for the scripts that change what is held: behind the prelude.
--
-- A replica gets each write a little later, so a replica that is promoted may not know the newest leases. Where there are replicas,
-- every server that is the primary has a term, and each term begins with a time in which nothing is granted: until every lease that
-- could have been held before it has run out. A lease that is known is renewed as ever.
--
-- KEYS  9 failover  hash: term:SERVICE -> the term in which this was written; withheld -> until when nothing is granted in it, in ms; and, to tell how long
--                   that must be, the length of each lease in ms, rounded up -> until when another one is expected. Of a lock in a
--                   cluster, of all locks elsewhere; not given where there are no failovers
-- ARGV  the last    "term:NAME STANDING SERVICE", of a script that changes what is held
--                   SERVICE: of which it is the primary, since a server may be that of several; nothing in a cluster
--                   NAME: by which a majority knows the primary; a server has another one each time it becomes the primary
--                   STANDING: for how many ms it has been the primary already, as far as is known; -1: for ever, or nobody can know
--                   whether there was another one

-- The longest lease that is expected where nothing is known of those before.
local USUAL = 30000
-- A write that is this old has reached each replica that can be promoted.
local LAG = 600000
-- By how much the clocks of two servers may differ.
local SKEW = 60000
-- For how long a run under a lease as long as an earlier one is expected: one that acquires the lock once a day, or a week, is not known to
-- a replica that has missed its last acquisition. A lease that is longer than LAG is expected only for as long as it lasts, or each
-- failover would keep all others waiting for it.
local MEMORY = 30 * 86400000
-- So often that is noted.
local NOTED = 3600000

-- Begins the term, if it is a new one.
local function enter_term(term, standing, service)
  local field = 'term:' .. service
  local before_it = redis.call('HGET', FAILOVER, field)
  if before_it == term then
    return
  end
  -- A server that is out of memory lets a script pass after a change in vain.
  redis.call('HDEL', FAILOVER, '')
  if not before_it and standing < 0 then
    -- As far as can be known, it is the first primary.
    redis.call('HSET', FAILOVER, field, term)
    return
  end
  local since = now - math.max(standing, 0)
  local longest, before, known = 0, 0, redis.call('HGETALL', FAILOVER)
  for at = 1, #known, 2 do
    local ttl, held_until = tonumber(known[at]), tonumber(known[at + 1])
    if known[at] == 'withheld' then
      before = held_until
    elseif ttl and held_until + SKEW > since then
      longest = math.max(longest, ttl)
    elseif ttl then
      redis.call('HDEL', FAILOVER, known[at])
    end
  end
  if longest == 0 then
    longest = USUAL
  end
  -- What was withheld by another server's clock, which may be wrong, is not withheld for longer than anything could be held.
  local ends = math.max(since + longest, math.min(before, now + math.max(longest, USUAL)))
  redis.call('HSET', FAILOVER, field, term, 'withheld', whole(ends))
  -- What was granted and is not claimed may be another's by now.
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    if ends > now and redis.call('ZSCORE', QUEUE, token) then
      redis.call('ZREM', HOLDERS, token)
    end
  end
end

-- Notes that there is a lease of this length, from now on. One by hand is not renewed, so it soon stops being new; and where all locks have
-- one hash, it keeps the others waiting for no longer than LAG.
local function note_lease(ttl, by_hand)
  if ttl <= 0 then
    return
  end
  local is_of_one_lock = string.find(FAILOVER, '{', 1, true)
  local length = by_hand and not is_of_one_lock and math.min(ttl, LAG) or ttl
  local unit = 10 ^ math.max(math.floor(math.log10(length)) - 1, 0)
  length = whole(math.ceil(length / unit) * unit)
  local expected = by_hand and math.min(ttl, LAG) or ttl <= LAG and MEMORY or ttl
  local known = tonumber(redis.call('HGET', FAILOVER, length) or 0)
  if known + (expected == MEMORY and NOTED or 0) < now + expected then
    redis.call('HSET', FAILOVER, length, whole(now + expected))
  end
end

-- Returns in how many ms a waiter at this place looks again at the latest: the first few and the last one do when grants are possible
-- again, a little after each other.
local function look_after_failover(place, is_last)
  return (place < 4 or is_last) and withheld + 50 * math.min(place, 4) or math.huge
end

local term, standing, service = string.match(ARGV[#ARGV] or '', '^term:(%S+) (-?%d+) (.*)$')
if term then
  enter_term(term, tonumber(standing), service)
end
withheld = math.max((tonumber(redis.call('HGET', FAILOVER, 'withheld')) or 0) - now, 0)
