-- Claim something for a while, if nobody has.
-- KEYS 1 the claim
-- ARGV 1 the time, 0 for the server's own  2 for how long, in us
-- Reply {1} | {0}: it is another's
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
if tonumber(redis.call('HGET', KEYS[1], 'until') or 0) > now then return {0} end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[2]) / 1000))
return {1}
