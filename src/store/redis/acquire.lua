-- Acquires the lock if it is free and nobody is ahead of us, or if it was granted to us; otherwise joins the queue, stays in
-- it, or leaves it. Acquires nothing if a run has succeeded recently enough. Repeated under the same token, gives the same
-- answer.
--
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
--       4 wait      1: wait in the queue; 0: do not wait (any more)
--       5 seen      JSON of the holder that the waiter saw last: {token, info: its particulars, in case the server loses it, ended: as
--                   in the reply}, also {ends: until when it holds the lock at most} if it is kept; empty: none
--       6 hand      1: acquired by hand; 0: for a command of lockrun's
--       7 slots     how many may hold the lock at once; 0: all that share it
--       8 request   which request this is, under a token of the user's own; empty: the only one under its token
--       9 max       do not join the queue if so many wait already; empty: no limit
--      10 once      acquire nothing if a run that began less than so many ms ago has ended with 0; 0: no such condition
-- Reply {1, fence, slot, granted, notified}
--                   it is ours
--       {0, {held for, expires in or -1, info, token} or {}, place in the queue from 0, look again in, granted, notified, ended, withheld}
--                   it is not; times in ms
--                   place -1: we do not wait, because too many do, or because our token holds the lock otherwise or was forgotten
--                   ended: when a hold last ended
--                   withheld: for how long nothing is granted yet, after a failover
--       {2, began, now, granted, notified}
--                   not wanted; began: when the run that succeeded began
--                   granted and notified: tokens of waiters, or '' (see confirm_handoff)

local TOKEN, TTL, WHO, WAIT = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local SEEN, HAND, SLOTS = decoded(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local REQUEST = ARGV[8] ~= '' and ARGV[8] or nil
local MAX, ONCE = tonumber(ARGV[9]), tonumber(ARGV[10])

-- Fewer waiters watch the end of a short lease, and only AFTER_SHORT ms after it, still within the second that a crash may
-- cost: such a lease is renewed so often that its end always looks near.
local SHORT, AFTER_SHORT, SHORT_WATCHERS = 5000, 700, 2

-- For how long a waiter that has missed a look still counts as one of MAX: it may be alive, and cut off from the server.
local PATIENCE = 20000

-- Asks these waiters for a sign of life, a look, because `doubted` may be dead; not if that was done less than `again_in` ms
-- ago. Returns whether it asked.
local function probe(doubted, again_in, tokens)
  local info = info_of(doubted)
  if now - (info.probed or 0) < again_in then
    return false
  end
  info.probed = now
  set_info(doubted, info)
  for _, token in ipairs(tokens) do
    if overdue(token) < 0 then
      mail(token, 0)
    end
  end
  return true
end

-- Whether MAX waiters wait: those that are listening, not granted the lock yet, and have not missed a look for PATIENCE.
local function is_full()
  local waiting = 0
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', HEARTBEATS, whole(now + LATE - PATIENCE), '+inf')) do
    if waiting < MAX and not is_unresponsive(token) and not ends_of(token) then
      waiting = waiting + 1
    end
  end
  return waiting >= MAX
end

-- Whether we are last in the queue.
local function is_last()
  return redis.call('ZREVRANGE', QUEUE, 0, 0)[1] == TOKEN
end

-- In how many ms a waiter with this ticket looks again: to show that it is alive, at a time of its own, so that all looks are
-- spread evenly; or earlier, if the lock may have to be handed off before that and too few others look.
local function look_again(ticket, expires_in, info)
  local look_in = (ticket * 0.618 * REFRESH - now) % REFRESH
  if look_in < REFRESH_MAX - REFRESH then
    look_in = look_in + REFRESH
  end
  if not expires_in or expires_in < 0 then
    return look_in
  end
  local granted = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
  local event, enough = expires_in + 1, WATCHERS
  if not redis.call('ZSCORE', QUEUE, granted) then
    local lease = cjson.decode(info)
    -- A lease taken by hand is not renewed, so it ends when it says.
    if not lease.hand and (lease.ttl or 0) < SHORT then
      event, enough = event + AFTER_SHORT, SHORT_WATCHERS
    end
  elseif expires_in > CLAIM_WINDOW - FIRST_LOOK then
    event = expires_in - (CLAIM_WINDOW - FIRST_LOOK)
  else
    -- So that, if the grant expires unclaimed, we know which others are silent too.
    probe(granted, CLAIM_WINDOW, first_waiters(PROBED))
  end
  -- Not all at the same moment. The next waiter does not rely on others; nor does the last one, since the first ones may have
  -- died with the holder.
  local others = due(event + 100)
  return (others < enough or first_waiters(1)[1] == TOKEN or is_last()) and math.min(look_in, event + 50 * others) or look_in
end

-- Whether only the waiters ahead of us keep us from holding the lock.
local function is_refused()
  local room = survey()
  return room.count > 0 and fits(SLOTS, room) and not ends_of(TOKEN)
end

-- The listening waiters ahead of us.
local function those_ahead()
  local ahead = {}
  for token in waiters() do
    if token == TOKEN or #ahead == PROBED then
      break
    end
    ahead[#ahead + 1] = token
  end
  return ahead
end

-- At each beat, asks the waiters ahead of us, which leave a slot unused that we could take, to look; one that has not looked
-- by the next beat is passed over. Returns in how many ms we have to look again for that, if we asked or are among the first
-- that want the slot.
local function ask_those_ahead()
  local ahead, look_in = those_ahead(), math.huge
  if ahead[1] and probe(ahead[1], BEAT / 4, ahead) then
    look_in = next_beat()
  end
  for _, token in ipairs(willing(survey())) do
    look_in = token == TOKEN and next_beat() or look_in
  end
  return look_in
end

if redis.call('LINDEX', MAILBOX .. TOKEN, 0) == CANCELLED then
  return {0, {}, 0, REFRESH, '', '', last_end(), 0}
end

if not ends_of(TOKEN) then
  refuse_if_lost()
end

local ended = drop_ended()

-- A waiter that asks is listening. Delete its mail even if there is none: after a script's first write, a server that is out
-- of memory lets its other writes pass, so waiters keep their turn.
if ends_of(TOKEN) or redis.call('ZSCORE', QUEUE, TOKEN) then
  redis.call('DEL', MAILBOX .. TOKEN)
end

local granted, own = ends_of(TOKEN), info_of(TOKEN)
if own.fence and not granted then
  -- Only its lease was deleted: treat this as a new acquisition.
  redis.call('HDEL', INFO, TOKEN)
  own = {}
end
if own.fence and (own.forgotten or (own.slots or 1) ~= 1 and own.slots ~= SLOTS) then
  -- Otherwise the reply would say that it has never lost the lock, or that it holds it in another mode, by which others are not
  -- admitted or refused. One that acquired it alone is answered in any mode.
  local handed, notified = hand_off()
  expire_holders()
  return {0, holder(), -1, REFRESH, handed, notified, last_end(), 0}
end
local done = ONCE > 0 and last_run().done
done = done and math.abs(now - done) < ONCE and not own.fence and done
if done or redis.call('ZSCORE', QUEUE, TOKEN) and (own.slots or SLOTS) ~= SLOTS then
  -- It no longer wants what it waits for.
  drop_waiter(TOKEN)
  granted = nil
end
if done then
  local handed, notified = hand_off()
  expire_holders()
  return {2, done, now, handed, notified}
end
local room = survey(TOKEN)
if SEEN.token and not (own.fence or room.held or ends_of(SEEN.token) and info_of(SEEN.token).fence) and last_end() <= SEEN.ended
  and now < (SEEN.ends or math.huge) then
  -- The server has lost the holder that we saw: no hold has ended since, and only forgotten holders hold the lock. (A grant
  -- to a waiter proves nothing: the client that made it need not have seen the holder.) So restore the holder, with a whole
  -- lease, because it may have renewed just before. One whose command ran excludes everybody: nobody knows how it held the
  -- lock.
  remove_waiter(SEEN.token)
  set_info(SEEN.token, SEEN.info)
  -- The server may have lost these with the holder. Compared as text, see `next_fence`.
  if ('%20s'):format(redis.call('GET', FENCE) or '') < ('%20s'):format(SEEN.info.fence) then
    redis.call('SET', FENCE, SEEN.info.fence)
  end
  if last_end() < SEEN.ended then
    note_end(SEEN.ended)
  end
  set_lease(SEEN.token, math.min(now + SEEN.info.ttl, SEEN.ends or math.huge))
  if FAILOVER then
    note_lease(SEEN.info.ttl, SEEN.info.hand)
  end
  room = survey(TOKEN)
end
if granted and not own.fence and (not has_room(SLOTS, room) or room.taken[own.slot]) then
  redis.call('ZREM', HOLDERS, TOKEN)
  granted = nil
end
local mine, handed, notified = granted, '', ''
if not mine and withheld == 0 and has_room(SLOTS, room) then
  local ahead = first_waiters(1)[1]
  mine = not ahead or ahead == TOKEN
end

if mine then
  local info = info_of(TOKEN)
  local leads = info.leads
  if not info.fence then
    info = {who = cjson.decode(WHO), slot = granted and info.slot or lowest_slot(SLOTS, room), hand = HAND or nil,
      request = REQUEST, slots = SLOTS, once = ONCE > 0 and ONCE or nil}
    take_hold(TOKEN, TTL, info)
    remove_waiter(TOKEN)
  elseif info.request ~= REQUEST then
    -- Two requests were answered that the lock is theirs, so cancelling one must not release it.
    info.request = nil
    set_info(TOKEN, info)
  end
  -- An acquisition by hand under a run's token does not change the lease that the run counts on.
  if info.hand or not HAND then
    -- Only an acquisition by hand can shorten the lease.
    local before = HAND and ends_of(TOKEN)
    begin_lease(TOKEN, TTL, info)
    if before then
      tell_end(before, ends_of(TOKEN))
    end
    if FAILOVER then
      note_lease(TTL, info.hand)
    end
  end
  -- There may be room for others: several leases ended at once, or the waiters behind us let more hold the lock. If we were
  -- granted the lock, that hand-off has served them already, unless they had to wait for our claim.
  if ended > 0 or not granted or leads then
    handed, notified = hand_off()
  end
  expire_holders()
  return {1, info.fence, info.slot, handed, notified}
end

-- Dead waiters lose their place.
for _, token in ipairs(redis.call('ZRANGEBYSCORE', HEARTBEATS, 0, now)) do
  if token ~= TOKEN then
    drop_waiter(token)
  end
end
local first = holder()
local place, look_in = redis.call('ZRANK', QUEUE, TOKEN), REFRESH
if WAIT and not place and MAX and is_full() then
  WAIT, place = false, -1
end
if WAIT then
  local info = info_of(TOKEN)
  -- A waiter that is late or has just joined does not judge others: perhaps the server was away.
  if place and is_refused() and overdue(TOKEN) < GRACE then
    for _, token in ipairs(those_ahead()) do
      if is_silent(token) then
        mark_unresponsive(token)
      end
    end
  elseif not place then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')
    local most = math.max(SLOTS > 0 and SLOTS or MANY, last[1] and info_of(last[1]).most or 1)
    redis.call('ZADD', QUEUE, whole((last[2] or 0) + 1), TOKEN)
    info = {who = cjson.decode(WHO), slots = SLOTS, most = most, joined = now}
    place = redis.call('ZRANK', QUEUE, TOKEN)
  end
  set_info(TOKEN, info)
  -- Our own next look must not count among those of the others.
  expect(TOKEN, 0)
  look_in = look_again(redis.call('ZSCORE', QUEUE, TOKEN), first[2], first[3])
  -- The keys outlive the last sign of life.
  redis.call('PEXPIRE', QUEUE, REFRESH_MAX + LATE)
  redis.call('PEXPIRE', HEARTBEATS, REFRESH_MAX + LATE)
elseif place then
  drop_waiter(TOKEN)
end
handed, notified = hand_off()
if WAIT and not ends_of(TOKEN) then
  -- A waiter that has handed off the lock watches the grant, too.
  look_in = math.min(look_in, is_refused() and ask_those_ahead() or REFRESH_MAX, handed ~= '' and FIRST_LOOK or REFRESH_MAX)
  if withheld > 0 then
    look_in = math.min(look_in, look_after_failover(place, is_last()))
  end
  expect(TOKEN, look_in)
end
expire_holders()
return {0, handed ~= '' and holder() or first, place or 0, look_in, handed, notified, last_end(), withheld}
