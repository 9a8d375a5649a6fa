-- Reserves a value of the sequence that nobody else has reserved. Repeated under the same token, gives the same answer.
--
-- ARGV  1 token     of this reservation
--       2 ttl       of its lease in ms; 0: it never expires
--       3 who       JSON of the holder's particulars
--       4 how       step: the next value after the last one that is not reserved; value: this value
--       5 value     step: the first value of the sequence; value: the wanted one
--       6 step      step: the difference between two values
--         after     value: the last value, which it follows; empty: there is none
--       7 steps     value: how many steps it is from that one
-- Reply {1, fence, value}
--                   reserved
--       {0}         value: another run has reserved it
--                   step, value: the request was cancelled before it came, so nobody reads this
--       {2, last}   step: no integer follows that one, or it is not an integer itself
--       {3, last}   value: the last value is another one by now; '' if there is none
--       {4, ms}     nothing is reserved for so long, after a start of the server or a failover

local TOKEN, TTL, WHO, HOW, VALUE, STEP, AFTER = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[6]
local STEPS = tonumber(ARGV[7])

if redis.call('LINDEX', MAILBOX .. TOKEN, 0) == CANCELLED then
  return {0}
end
refuse_if_lost()
local before = next_end()
drop_ended()
hand_off()

local function finish(...)
  notify_expiry(before)
  expire_holders()
  return {...}
end

-- Adds as the server does, because the integers may exceed those of Lua; returns nil on overflow, or if `value` is no
-- integer. (HSET comes first: after a DEL that changes nothing, a server that is out of memory would let the other writes
-- pass.)
local function next_after(value)
  redis.call('HSET', SEQUENCE, 'next', value)
  local sum = redis.pcall('HINCRBY', SEQUENCE, 'next', STEP)
  local following = type(sum) == 'number' and redis.call('HGET', SEQUENCE, 'next') or nil
  redis.call('HDEL', SEQUENCE, 'next')
  return following
end

local info = info_of(TOKEN)
if not ends_of(TOKEN) then
  if withheld > 0 then
    return finish(4, withheld)
  end
  local last = redis.call('HGET', SEQUENCE, 'last')
  local reserved = {}
  for _, token in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    reserved[info_of(token).value or ''] = true
  end
  local value, place = VALUE, tonumber(redis.call('HGET', SEQUENCE, 'place') or 0)
  if HOW == 'step' then
    local previous = last
    value, place = last and next_after(last) or not last and VALUE, place + 1
    while value and reserved[value] do
      previous, value, place = value, next_after(value), place + 1
    end
    if not value then
      return finish(2, previous)
    end
  elseif (last or '') ~= AFTER then
    return finish(3, last or '')
  elseif reserved[value] then
    return finish(0)
  else
    place = place + STEPS
  end
  -- It takes a slot of its own, but needs no permission: nobody else has its value.
  info = {who = cjson.decode(WHO), value = value, place = place, slot = lowest_slot(1, survey())}
  take_hold(TOKEN, next_fence(), TTL, info)
end
begin_lease(TOKEN, TTL, info)
return finish(1, info.fence, info.value or '')
