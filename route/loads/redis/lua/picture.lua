-- All loads and speeds. The first reply is how many reservations were ended that were
-- overdue: with 64 of them there may be more.
-- ARGV  2 how long a speed is kept of which nobody tells, in us
local ended = endOverdue(64)
local loads, speeds = redis.call('HGETALL', LOAD), redis.call('HGETALL', SPEED)
local kept, old = {}, {}
for i = 1, #speeds, 2 do
  local _, _, at = readSpeed(speeds[i + 1])
  if now - at <= tonumber(ARGV[2]) then kept[#kept + 1] = speeds[i]; kept[#kept + 1] = speeds[i + 1]
  elseif #old < 64 then old[#old + 1] = speeds[i] end
end
if #old > 0 then redis.call('HDEL', SPEED, unpack(old)) end
return {ended, string.format('%.0f', now), loads, kept,
  redis.call('HGET', SETTINGS, 'settings') or '', redis.call('HGET', SETTINGS, 'version') or '0'}
