-- Raises the mark of a partition to at least so much.
-- KEYS  high
-- ARGV  limit

if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
