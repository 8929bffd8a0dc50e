-- Writes down whether the log is wanted.
-- ARGV  schema partitions entries keep
-- entries is the length that the log is cut to, 0 for off. With keep 1 what is
-- written already stays. Returns what is in force.

local last = redis.call('HGET', meta, 'log')
if last and ARGV[4] == '1' then return last end
if last ~= ARGV[3] then
  redis.call('HSET', meta, 'log', ARGV[3])
  moved()
end
return ARGV[3]
