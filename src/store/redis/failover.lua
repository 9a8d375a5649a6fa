-- Covers what a failover may have lost, for the scripts that change holds. Sent after the prelude.
--
-- A replica receives each write a little later, so a promoted replica may not know the newest leases. Where there are replicas,
-- each server that is the primary has a term, and nothing is granted at the beginning of a term, until every lease that could
-- have been held before it has expired. Known leases are renewed as usual.
--
-- KEYS  9 failover  hash: term:SERVICE -> the term in which this was written; withheld -> until when nothing is granted in
--                   it, in ms; lead -> how far its fences are ahead of the clock, in ms; and, to compute `withheld`, length of
--                   a lease in ms, rounded up -> until when another such lease is expected. One per lock in a cluster, one for
--                   all locks elsewhere; not given where failovers cannot happen
-- ARGV  the last    "term:NAME STANDING SERVICE", of a script that changes holds
--                   SERVICE: whose primary the server is, since it may be that of several; empty in a cluster
--                   NAME: by which a majority knows the primary; a server gets another one each time it becomes the primary.
--                   It begins with the configuration epoch, which grows with each failover
--                   STANDING: for how many ms it has been the primary, as far as is known; -1: always, or nobody can know
--                   whether there was another primary before it

-- The longest lease that is assumed where nothing is known of earlier ones.
local USUAL = 30000
-- A write this old has reached every replica that can be promoted.
local LAG = 600000
-- By how much the clocks of two servers may differ. So each term's fences are ahead of the clock by so much more than those of
-- the term before: the new primary may not know the last fence, and its clock may be behind. It may not know the last term
-- either, but the epoch counts the failovers.
local SKEW = 60000
-- No more failovers than this count: a fence must remain a number that fits into 64 bits.
local EPOCH_MAX = 1000000
-- For how long another lease of a known length is expected: a lock that is acquired once a day, or a week, may be held when
-- the primary fails, and a replica that missed its last acquisition does not know it. A lease longer than LAG is expected
-- only for as long as it lasts, or each failover would make everybody wait for it.
local MEMORY = 30 * 86400000
-- An expectation of MEMORY is written again only after this long.
local NOTED = 3600000

local function epoch_of(term)
  return math.min(tonumber(string.match(term or '', '^(%d+):')) or 0, EPOCH_MAX)
end

-- Begins the term, if it is new.
local function enter_term(term, standing, service)
  local field = 'term:' .. service
  local before_it = redis.call('HGET', FAILOVER, field)
  if before_it == term then
    return
  end
  -- A server that is out of memory lets a script go on after a write that changes nothing.
  redis.call('HDEL', FAILOVER, '')
  local failovers = before_it and math.max(epoch_of(term) - epoch_of(before_it), 1) or 0
  fence_lead = math.max(epoch_lead, fence_lead + SKEW * failovers)
  redis.call('HSET', FAILOVER, 'lead', whole(fence_lead))
  if not before_it and standing < 0 then
    -- As far as anybody can know, it is the first primary.
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
  -- Another server's clock, which may be wrong, must not withhold for longer than any lease could last.
  local ends = math.max(since + longest, math.min(before, now + math.max(longest, USUAL)))
  redis.call('HSET', FAILOVER, field, term, 'withheld', whole(ends))
end

-- Notes that a lease of this length begins now. A lease by hand is not renewed, so it is soon no longer new; and where all
-- locks share one hash, it keeps the others waiting for no longer than LAG.
note_lease = function(ttl, by_hand)
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

local term, standing, service = string.match(ARGV[#ARGV] or '', '^term:(%S+) (-?%d+) (.*)$')
epoch_lead = SKEW * (1 + epoch_of(term))
fence_lead = tonumber(redis.call('HGET', FAILOVER, 'lead')) or epoch_lead
if term then
  enter_term(term, tonumber(standing), service)
end
withheld = math.max((tonumber(redis.call('HGET', FAILOVER, 'withheld')) or 0) - now, 0)
