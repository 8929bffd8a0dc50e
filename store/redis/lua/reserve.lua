-- Raises the limit up to which ids may be given.
-- ARGV  schema partitions marked limit
-- marked is the highest limit that any partition remembered. The new one, limit, is
-- remembered by all of them by now, and nobody else has it. So the ids in between are
-- this caller's to give. So where the limit is another than marked, ids go on above
-- what is marked. Then the registry is new, or has been lost while blocks of its ids
-- may live on elsewhere. In the latter case there is something to sweep.

freeing()
local marked, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local last = redis.call('HGET', count, 'reserved')
if marked > tonumber(last or '0') and marked > tonumber(redis.call('HGET', count, 'holder') or '0') then
  redis.call('HSET', count, 'holder', text(marked))
  if not last then
    -- More lives than can ever have been counted.
    redis.call('HSET', count, 'ended', '0')
    more('ended', text(math.max(over, math.floor(now / 1000))))
  end
end
more('holder', 0) -- its copy is what it is from here on
if limit > tonumber(last or '0') then redis.call('HSET', count, 'reserved', text(limit)) end
return 1
