-- Give out the turns to ask engines for their load.
-- ARGV  2 most  3 until the next turn, in us  4 how long a turn is kept that nobody takes, in us  5... pods
-- Reply the pods
if #ARGV < 5 then error('arguments are wrong', 0) end
check(2, 4)
local most, out = tonumber(ARGV[2]), {}
for a = 5, #ARGV do
  if #out >= most then break end
  local due, missed = readTurn(call('HGET', TURNS, ARGV[a]))
  if due <= now then
    out[#out + 1] = ARGV[a]
    call('HSET', TURNS, ARGV[a], string.format('%.0f %d', now + tonumber(ARGV[3]), missed))
  end
end
if call('HLEN', TURNS) > 2 * (#ARGV - 4) + 64 then -- of pods that are gone
  local all = call('HGETALL', TURNS)
  for i = 1, #all, 2 do
    if readTurn(all[i + 1]) < now - tonumber(ARGV[4]) then call('HDEL', TURNS, all[i]) end
  end
end
if #out > 0 then call('PEXPIRE', TURNS, 86400000) end
return out
