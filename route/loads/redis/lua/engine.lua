-- The engine of a pod says what runs there: Engine.follow in engine.go.
-- ARGV  2 pod  3 when its next turn is, in us from now  4 stale after us  5 doubt in us  6 most rows
--       then of each rank: rank and pod, gen, running, waiting, waiting tokens, usage in millionths, tokens of
--       the cache, progress
if not (#ARGV >= 6 and (#ARGV - 6) % 8 == 0) then error('arguments are wrong', 0) end
check(3, 6)
check(7, #ARGV, 8)
call('HSET', TURNS, ARGV[2], string.format('%.0f 0', now + tonumber(ARGV[3])))
local stale, doubt, rows = tonumber(ARGV[4]), tonumber(ARGV[5]), call('HLEN', ENGINES)
for a = 7, #ARGV, 8 do
  local name, gen, progress = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 7])
  local old = readEngine(call('HGET', ENGINES, name))
  if old or rows < tonumber(ARGV[6]) then
    if not old then rows = rows + 1 end
    local row, work, prefill, blocks, requests = call('HGET', LOAD, name), 0, 0, 0, 0
    if row and #row == 104 then
      local g, _, _, w, p, b, n = numbers('<ddddddd', row)
      if g == 0 or g >= gen then work, prefill, blocks, requests = w, p, b, n end
    end
    local e = {put = now, at = now, gen = gen, running = tonumber(ARGV[a + 2]), waiting = tonumber(ARGV[a + 3]),
      tokens = tonumber(ARGV[a + 4]), usage = tonumber(ARGV[a + 5]), room = tonumber(ARGV[a + 6]), progress = progress,
      work = work, prefill = prefill, blocks = blocks, requests = requests, gone = 0, lacks = 0, since = now}
    if progress > 0 and (not old or old.progress == progress) then
      e.at = 0
      if old then e.at, e.work, e.prefill, e.blocks, e.requests = old.at, old.work, old.prefill, old.blocks, old.requests end
    else
      e.lacks = math.max(0, e.requests - e.running - e.waiting)
      if progress == 0 and old and old.gen == gen and now - old.put <= stale then
        local least = math.min(old.lacks, e.lacks)
        e.gone = math.min(old.gone, e.lacks)
        if now - old.since >= doubt then e.gone = least
        else e.lacks, e.since = least, old.since end
      end
    end
    writeEngine(name, e)
  end
end
for _, key in ipairs({ENGINES, TURNS}) do call('PEXPIRE', key, 86400000) end
return {1}
