-- Writing down the last run, for the scripts that end one: behind the prelude.

-- Writes down that one has ended whose particulars are lost.
local function note_lost()
  local last = last_run()
  if last.ended == 0 then
    last.ended = now
  end
  last.lost = now
  redis.call('SET', LAST, cjson.encode(last))
end

-- Writes down who had the lock, until now. `ending` has the status or signal, if a command has ended.
local function note(info, ending)
  ending.who, ending.started, ending.ended = info.who, info.since, now
  redis.call('SET', LAST, cjson.encode(ending))
end
