-- Keep what a process has counted of the demand for prefixes, or read what all have.
-- KEYS  demand: process -> when, in us, and what it has counted
-- ARGV  1 now in us, 0 for the server's time  2 how long it is kept, in us
--       and to keep it  3 process  4 what it has counted  5 most processes
-- Reply {process, counted, ...} to read, {} to keep
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local all, live, over, n, oldest, first = redis.call('HGETALL', KEYS[1]), {}, {}, 0, nil, math.huge
for i = 1, #all, 2 do
  local at, counted = string.match(all[i + 1], '^(%d+) (.*)$')
  at = tonumber(at or 0)
  if now - at > tonumber(ARGV[2]) then over[#over + 1] = all[i]
  else
    live[#live + 1], live[#live + 2] = all[i], counted
    if all[i] ~= ARGV[3] then
      n = n + 1
      if at < first or (at == first and all[i] < oldest) then oldest, first = all[i], at end
    end
  end
end
if not ARGV[3] then return live end
if n >= tonumber(ARGV[5]) then over[#over + 1] = oldest end
for i = 1, #over do redis.call('HDEL', KEYS[1], over[i]) end
redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f ', now) .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', tonumber(ARGV[2]) / 1000))
return {}
