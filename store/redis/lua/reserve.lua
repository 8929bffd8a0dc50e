-- Raises the limit up to which ids may be given.
-- ARGV  schema partitions marked limit
-- marked is the highest limit that any partition remembers, limit the new one,
-- which all of them remember by now. A registry that has no limit is new, or has
-- been lost while blocks of its ids may live on elsewhere: it begins above what
-- is marked, and has something to sweep.

freeing()
local marked, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local last = redis.call('HGET', count, 'reserved')
if not last and marked > tonumber(redis.call('HGET', count, 'holder') or '0') then
  redis.call('HSET', count, 'holder', text(marked))
  -- More lives than can ever have been counted: pods remember how many had ended
  -- when they were born.
  redis.call('HSET', count, 'ended', text(math.floor(now / 1000)))
end
if limit > tonumber(last or '0') then redis.call('HSET', count, 'reserved', text(limit)) end
return 1
