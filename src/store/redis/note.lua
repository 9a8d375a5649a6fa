-- Writing down the last run, for the scripts that end one: behind the prelude.

-- Whether one fence is less than another.
local function is_less(fence, other)
  return #fence < #other or #fence == #other and fence < other
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended; `request` is by which request of
-- a user, if by one; `succeeded`: it has ended with 0, and had the lock until then. Of one whose particulars are lost, it only notes
-- that it has ended; and of a kept lock, whose run was written down when it ended.
local function note(info, ending, request, succeeded)
  local last, before, ended = ending, last_run(), last_end()
  if info.fence and not info.kept then
    last.lost = ended >= now and whole(ended + 1) or nil
    last.who, last.started, last.ended = info.who, math.min(tonumber(info.since) or now, now), now
    last.done, last.till = before.done, before.till
    if succeeded then
      -- One in the future is by a clock that was wrong.
      if (last.done or 0) > now then
        last.done, last.till = nil, nil
      end
      last.done = math.max(last.done or 0, last.started)
      last.till = info.once and math.max(tonumber(last.till) or 0, last.started + info.once) or last.till
    end
  else
    last = before
    last.lost = whole(math.max(now, ended + 1))
  end
  last.request = request
  redis.call('SET', LAST, cjson.encode(last))
end
