-- Takes the lock if it is free and nobody is ahead of us, or if it was granted to us, and else joins the queue, stays in it, or
-- leaves it. Asked again under the same token, answers as the first time.
--
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
--       4 wait      1: wait in the queue; 0: do not wait (any more)
--       5 caution   the ttl of the holder that a waiter has seen when it last looked, in ms; 0: none, or waited for
--       6 seen      when that was, as the answer has told it
--       7 hand      1: it is taken by hand; 0: for a command of lockrun's
--       8 slots     how many may hold the lock at once
--       9 request   which request this is, under a token of the user's own; empty: the only one under its token
-- Reply {1, fence, slot, granted, told}
--                   it is ours
--       {0, {held for, expires in or -1, info, token} or {}, place in the queue from 0, look again in, granted, told}
--                   it is not; times in ms
--                   the last two are tokens of waiters, or '' (see settle)

local TOKEN, TTL, WHO, WAIT = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local CAUTION, SEEN, HAND, SLOTS = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
local REQUEST = ARGV[9] ~= '' and ARGV[9] or nil

-- How many waiters are asked for a sign of life when a grant seems not to be claimed.
local PROBED = 100
-- A short lease is watched for its end so long after it: within the second that a crash may cost, with fewer looks.
local SHORT, AFTER_SHORT = 5000, 700

-- Asks the next waiters for a sign of life, once a grant: if it runs out unclaimed, it is known who else is silent.
local function probe(granted)
  local info = info_of(granted)
  if info.probed then
    return
  end
  info.probed = true
  set_info(granted, info)
  for _, token in ipairs(first_waiters(PROBED)) do
    if token ~= TOKEN then
      mail(token, 0)
    end
  end
end

-- In how many ms a waiter with this ticket looks again: to show that it is alive, at a time of its own, so that the looks of all
-- are spread evenly; or earlier, if the lock might have to be passed on before and not enough others look.
local function look_again(ticket, expires_in, info)
  local look_in = (ticket * 0.618 * REFRESH - now) % REFRESH
  if look_in < REFRESH_MAX - REFRESH then
    look_in = look_in + REFRESH
  end
  if not expires_in or expires_in < 0 then
    return look_in
  end
  local granted = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
  local event = expires_in + 1
  if not redis.call('ZSCORE', QUEUE, granted) then
    local lease = cjson.decode(info)
    -- One that nobody renews ends when it says.
    if not lease.hand and (lease.ttl or 0) < SHORT then
      event = event + AFTER_SHORT
    end
  elseif expires_in > CLAIM_WINDOW - FIRST_LOOK then
    event = expires_in - (CLAIM_WINDOW - FIRST_LOOK)
  else
    probe(granted)
  end
  -- Not all in the same moment.
  local others = due(event + 100)
  return others < WATCHERS and math.min(look_in, event + 50 * others) or look_in
end

-- Finds out, now and then, whether a waiter listens that leaves a slot unused which we could have, because it lets fewer hold the
-- lock. Tells in how many ms that is known. It counts as alive for no longer because it was asked.
local function doubt(token)
  local info = info_of(token)
  if now - (info.doubted or 0) < REFRESH then
    return math.huge
  end
  info.doubted = now
  set_info(token, info)
  post(token, '0')
  return GRACE + 1
end

local letter = redis.call('LINDEX', BOX .. TOKEN, 0)
if letter == WITHDRAWN then
  return {0, {}, 0, REFRESH, '', '', now}
end

if not ends_of(TOKEN) then
  refuse_if_lost()
end

local ended = drop_ended_leases()

-- Whoever asks is listening. (Nothing is deleted in vain: after a first change a server that is out of memory would let the
-- others pass.)
if letter then
  redis.call('DEL', BOX .. TOKEN)
end

local granted = ends_of(TOKEN)
local mine, ahead, is_known_free = granted, nil, false
local handed, patience = {}, math.huge
if not mine then
  -- A holder that was there at our last look, and neither let go nor ran out of its lease, was forgotten: deleted, or lost
  -- with the server's data. Its command may still run, until it hears of it or its lease is over.
  local forgotten = CAUTION > 0 and ended == 0 and held() == 0
  if forgotten then
    local last = last_run()
    forgotten = math.max(last.ended, last.lost or 0) < SEEN
    is_known_free = not forgotten
  end
  if forgotten then
    patience = CAUTION
  elseif held() < SLOTS then
    ahead = first_waiters(1)[1]
    mine = not ahead or ahead == TOKEN
  end
end

if mine then
  local info = info_of(TOKEN)
  if not info.fence then
    -- A slot that was granted and not claimed is somebody else's by now.
    info = {who = cjson.decode(WHO), slot = granted and (info.slot or 0) or lowest_slot(), hand = HAND or nil,
      request = REQUEST}
    take_hold(TOKEN, TTL, info)
    forget_waiter(TOKEN)
  elseif info.request and info.request ~= REQUEST then
    -- Two have been told that it is theirs, so neither takes it back.
    info.request = nil
    set_info(TOKEN, info)
  end
  -- Whoever has the token of a command's run does not change the lease on which that counts.
  if info.hand or not HAND then
    set_lease(TOKEN, TTL == 0 and math.huge or now + TTL)
  end
  -- There may be room for others: several leases have ended at once, or those behind us let more hold the lock. Whoever granted
  -- it to us has seen to them.
  if ended > 0 or not granted then
    handed = hand_over()
  end
  expire_holders()
  return {1, info.fence, info.slot, handed[1] or '', handed[2] or ''}
end

local first = holder()
local place, look_in = redis.call('ZRANK', QUEUE, TOKEN), REFRESH
if WAIT then
  if not place then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] or 0
    redis.call('ZADD', QUEUE, whole(last + 1), TOKEN)
    set_info(TOKEN, {who = cjson.decode(WHO), slots = SLOTS, joined = now})
    place = redis.call('ZRANK', QUEUE, TOKEN)
  end
  -- Its own next look is not one of the others'.
  expect(TOKEN, 0)
  look_in = math.min(patience, look_again(redis.call('ZSCORE', QUEUE, TOKEN), first[2], first[3]))
  expect(TOKEN, look_in)
  -- After the last sign of life.
  redis.call('PEXPIRE', QUEUE, REFRESH_MAX + LATE)
  redis.call('PEXPIRE', ALIVE, REFRESH_MAX + LATE)
elseif place then
  forget_waiter(TOKEN)
  redis.call('HDEL', INFO, TOKEN)
end
-- Not one that may have been forgotten.
if ended > 0 or first[1] or is_known_free or (place and not WAIT) then
  handed = hand_over()
end
if WAIT and ahead and not ends_of(ahead) then
  look_in = math.min(look_in, doubt(ahead))
  expect(TOKEN, look_in)
end
expire_holders()
return {0, first, place or 0, look_in, handed[1] or '', handed[2] or '', now}
