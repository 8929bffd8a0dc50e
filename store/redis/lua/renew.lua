-- Gives pods a lease that should have one and have none, since it was lost.
-- ARGV  schema partitions, then so many times: pod json lease_ms
-- A pod whose registration is another by now is left alone. Returns how many those
-- were that have been given one.

freeing()
local n = 0
for i = 3, #ARGV, 3 do
  if redis.call('HGET', pods, ARGV[i]) == ARGV[i + 1] and not redis.call('ZSCORE', live, ARGV[i]) then
    redis.call('ZADD', live, text(now + tonumber(ARGV[i + 2])), ARGV[i])
    n = n + 1
  end
end
-- Readers must learn when it ends.
if n > 0 then moved('s') end
return n
