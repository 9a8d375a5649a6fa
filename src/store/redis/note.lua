-- Records the last run, for the scripts that end one. Sent after the prelude.

-- Whether one fence is less than another.
local function is_less(fence, other)
  return #fence < #other or #fence == #other and fence < other
end

-- Records who held the lock, until now. `ending`: the status or signal, if a command has ended; `request`: the request by
-- hand that released it, if one did; `succeeded`: the command ended with 0 and held the lock until then. Records nothing but the
-- request if the holder's particulars are lost, or if the lock was kept: that run was recorded when it ended.
local function note(info, ending, request, succeeded)
  local last, before = ending, last_run()
  if info.fence and not info.kept then
    last.who, last.started, last.ended = info.who, math.min(tonumber(info.since) or now, now), now
    last.done, last.once, last.till = before.done, before.once, before.till
    if succeeded then
      -- A time in the future comes from a clock that was wrong.
      if (last.done or 0) > now then
        last.done, last.once, last.till = nil, nil, nil
      end
      last.done = math.max(last.done or 0, last.started)
      if info.once then
        last.once = math.max(last.once or 0, last.started)
        last.till = math.max(tonumber(last.till) or 0, last.started + info.once)
      end
    end
  elseif request then
    last = before
  else
    return
  end
  last.request = request
  redis.call('SET', LAST, cjson.encode(last))
end
