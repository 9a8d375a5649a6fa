-- Takes the lock if it is free and nobody is ahead of us, claims it if it was granted to us, and else joins the queue, stays
-- in it, or leaves it. Asked again under the same token, answers as the first time.
--
-- ARGV  1 token     of this acquisition
--       2 ttl       of the lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
--       4 wait      1: wait in the queue; 0: do not wait (any more)
--       5 refresh   how often a waiter looks at the lock when nothing happens, in ms
--       6 caution   the ttl of the holder that a waiter has seen when it last looked, in ms; 0: none, or waited for
--       7 unseen    how long ago that was, in ms
--       8 hand      1: it is taken by hand; 0: for a command of lockrun's
-- Reply {1, fence}  it is ours
--       {0, {held for, expires in or -1, info, token} or {}, place in the queue from 0, look again in, granted, told}
--                   it is not; times in ms; the last two are tokens of waiters, or '' (see settle)

local TOKEN, TTL, WHO, WAIT, REFRESH = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
local CAUTION, UNSEEN, HAND = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'

local ended = drop_ended_leases()

-- Whoever asks is listening. Mail that it has not read yet may tell it when to look.
local look_in = REFRESH
local letters = redis.call('LRANGE', BOX .. TOKEN, 0, -1)
if letters[1] == WITHDRAWN then
  return {0, {}, 0, REFRESH, '', ''}
end
for _, letter in ipairs(letters) do
  local written, wait = string.match(letter, '^(%d+) (%d+)$')
  if tonumber(wait) > 0 then
    look_in = math.min(look_in, math.max(0, written + wait - now))
  end
end
if #letters > 0 then
  redis.call('DEL', BOX .. TOKEN)
end

local mine = redis.call('ZSCORE', HOLDERS, TOKEN)
local handed = {}
if not mine then
  if redis.call('ZCARD', HOLDERS) == 0 then
    -- A holder that was there at our last look, and neither let go nor ran out of its lease, was forgotten: deleted, or lost
    -- with the server's data. Its command may still run, until it hears of it or its lease is over.
    local last = CAUTION > 0 and ended == 0 and redis.call('GET', LAST)
    local forgotten = CAUTION > 0 and ended == 0 and (not last or cjson.decode(last).ended < now - UNSEEN)
    local first = waiters(1)[1]
    mine = not forgotten and (not first or first == TOKEN)
    if forgotten then
      look_in = math.min(look_in, CAUTION)
    elseif not mine and ended > 0 then
      handed = hand_over()
    end
  end
end

if mine then
  local info = info_of(TOKEN)
  if not info.fence then
    -- Greater than the last one, and, should that be forgotten, than any that was given out before now.
    local fence = math.max((tonumber(redis.call('GET', FENCE)) or 0) + 1, now)
    redis.call('SET', FENCE, whole(fence))
    info = {who = cjson.decode(WHO), since = now, fence = fence, ttl = TTL, hand = HAND or nil}
    set_info(TOKEN, info)
    forget_waiter(TOKEN)
  end
  redis.call('ZADD', HOLDERS, TTL == 0 and '+inf' or whole(now + TTL), TOKEN)
  expire_keys()
  return {1, info.fence}
end

local place = redis.call('ZRANK', QUEUE, TOKEN)
if not WAIT then
  if place then
    forget_waiter(TOKEN)
    redis.call('HDEL', INFO, TOKEN)
  end
else
  if not place then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] or 0
    redis.call('ZADD', QUEUE, whole(last + 1), TOKEN)
    set_info(TOKEN, {who = cjson.decode(WHO), joined = now})
    place = redis.call('ZRANK', QUEUE, TOKEN)
  end
  redis.call('ZADD', ALIVE, whole(now + ALIVE_FOR), TOKEN)
end
expire_keys()

-- The first waiters look when the lease runs out, one after the other; so does whoever finds a grant that nobody has claimed
-- yet. The others only show that they are alive.
local held = holder()
if place and held[2] and held[2] >= 0 then
  local turn
  for at, token in ipairs(waiters(3)) do
    if token == TOKEN then
      turn = at
    end
  end
  if turn or redis.call('ZSCORE', QUEUE, redis.call('ZRANGE', HOLDERS, 0, 0)[1]) then
    look_in = math.min(look_in, held[2] + 1 + 20 * (turn or 0))
  end
end
return {0, held, place or 0, look_in, handed[1] or '', handed[2] or ''}
