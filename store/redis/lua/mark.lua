-- Raises the mark of a partition to at least so much.
-- KEYS  high
-- ARGV  limit

if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then
  -- A full server refuses a first write that may take memory: this one goes first.
  redis.call('UNLINK', KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
