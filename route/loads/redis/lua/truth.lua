-- Add what requests were promised and given: Truth.add in truth.go.
-- KEYS 1 truths
-- ARGV 1 the time, 0 for the server's own  2 the window  3 most rows  4 how long a row is kept, in us
--      then of each rank: rank and pod, gen, requests, predicted, delivered
local call, now = redis.call, tonumber(ARGV[1])
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local function read(v)
  local at, g, n, p, d = string.match(v or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return tonumber(at or 0), tonumber(g or 0), tonumber(n or 0), tonumber(p or 0), tonumber(d or 0)
end
local window, rows, most = tonumber(ARGV[2]), call('HLEN', KEYS[1]), tonumber(ARGV[3])
if rows > most / 2 then
  local all = call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if now - read(all[i + 1]) > tonumber(ARGV[4]) then call('HDEL', KEYS[1], all[i]); rows = rows - 1 end
  end
end
for a = 5, #ARGV, 5 do
  local v = call('HGET', KEYS[1], ARGV[a])
  local _, g, n, p, d = read(v)
  local gen = tonumber(ARGV[a + 1])
  if v or rows < most then
    if not v then rows = rows + 1 end
    if gen > g then g, n, p, d = gen, 0, 0, 0 end
    if gen == g then
      n, p, d = n + tonumber(ARGV[a + 2]), p + tonumber(ARGV[a + 3]), d + tonumber(ARGV[a + 4])
      while n > window do n, p, d = math.floor(n / 2), math.floor(p / 2), math.floor(d / 2) end
    end
    call('HSET', KEYS[1], ARGV[a], string.format('%.0f %.0f %.0f %.0f %.0f', now, g, n, p, d))
  end
end
call('PEXPIRE', KEYS[1], 86400000)
return {1}
