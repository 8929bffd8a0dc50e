-- All loads and speeds. The first reply is how many reservations were ended that were
-- overdue: with 64 of them there may be more.
-- ARGV  2 how long a speed is kept of which nobody tells, in us  3 the same of an engine's load
local ended = endOverdue(64)
local loads, speeds = redis.call('HGETALL', LOAD), redis.call('HGETALL', SPEED)
local kept, old = {}, {}
for i = 1, #speeds, 2 do
  local _, _, at = readSpeed(speeds[i + 1])
  if now - at <= tonumber(ARGV[2]) then kept[#kept + 1] = speeds[i]; kept[#kept + 1] = speeds[i + 1]
  elseif #old < 64 then old[#old + 1] = speeds[i] end
end
if #old > 0 then redis.call('HDEL', SPEED, unpack(old)) end
local engines, silent = redis.call('HGETALL', ENGINES), {}
for i = 1, #engines, 2 do
  local e = readEngine(engines[i + 1])
  if (not e or now - e.put > tonumber(ARGV[3])) and #silent < 64 then silent[#silent + 1] = engines[i] end
end
if #silent > 0 then redis.call('HDEL', ENGINES, unpack(silent)) end
return {ended, string.format('%.0f', now), loads, kept,
  redis.call('HGET', SETTINGS, 'settings') or '', redis.call('HGET', SETTINGS, 'version') or '0', engines}
