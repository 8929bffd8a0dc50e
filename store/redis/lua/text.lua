-- Lets values that are texts age.
-- KEYS  blocks, of one partition on a cluster
-- ARGV  the time to live in ms
-- Gives it to those that have none. Returns how many those were.

local n = 0
for _, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key)
  if type(v) == 'string' and string.find(v, '[^%d,]') and redis.call('PTTL', key) < 0 then
    redis.call('PEXPIRE', key, ARGV[1])
    n = n + 1
  end
end
return n
