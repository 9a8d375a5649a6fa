-- Writing down the last run, for the scripts that end one: behind the prelude.

-- Whether one fence is less than another.
local function is_less(fence, other)
  return #fence < #other or #fence == #other and fence < other
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended; `request` is by which request of
-- a user, if by one; `succeeded`: it has ended with 0, and had the lock until then. Of one whose particulars are lost, only that it has ended; and of a kept lock, whose run was written down when
-- it ended.
local function note(info, ending, request, succeeded)
  local last, before = ending, last_run()
  if info.fence and not info.kept then
    last.who, last.started, last.ended = info.who, math.min(tonumber(info.since) or now, now), now
    last.done, last.once = before.done, before.once
    if succeeded and last.started >= (last.done or 0) then
      last.done, last.once = last.started, info.once
    end
  else
    last = before
    last.lost = now
  end
  last.request = request
  redis.call('SET', LAST, cjson.encode(last))
end
