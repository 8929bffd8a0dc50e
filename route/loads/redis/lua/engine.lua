-- The engine of a pod says what runs there: Engine.follow in engine.go.
-- ARGV  2 pod  3 when its next turn is, in us from now  4 stale after us  5 doubt in us  6 most rows
--       then of each rank: rank and pod, gen, running, waiting, waiting tokens, usage in millionths, tokens of
--       the cache, progress
redis.call('HSET', TURNS, ARGV[2], string.format('%.0f 0', now + tonumber(ARGV[3])))
local stale, doubt, rows = tonumber(ARGV[4]), tonumber(ARGV[5]), redis.call('HLEN', ENGINES)
for a = 7, #ARGV, 8 do
  local name, gen, progress = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 7])
  local old = readEngine(redis.call('HGET', ENGINES, name))
  if old or rows < tonumber(ARGV[6]) then
    if not old then rows = rows + 1 end
    local l = readLoad(redis.call('HGET', LOAD, name))
    if not l or (l.gen ~= 0 and l.gen < gen) then l = {work = 0, prefill = 0, blocks = 0, requests = 0} end
    local e = {put = now, at = now, gen = gen, running = tonumber(ARGV[a + 2]), waiting = tonumber(ARGV[a + 3]),
      tokens = tonumber(ARGV[a + 4]), usage = tonumber(ARGV[a + 5]), room = tonumber(ARGV[a + 6]), progress = progress,
      work = l.work, prefill = l.prefill, blocks = l.blocks, requests = l.requests, gone = 0, lacks = 0, since = now}
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
for _, key in ipairs({ENGINES, TURNS}) do redis.call('PEXPIRE', key, 86400000) end
return {1}
