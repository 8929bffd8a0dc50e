-- Writes pages of the map of a generation, and takes from its list of changes those that
-- are in the pages by then.
--
-- KEYS  records changes state page...
-- ARGV  generation fence old new n page...
--
-- The state is "folds,pages,entries" and is compared with old, "" for none: who has
-- read another one has read other pages. With new not "" this is the last call of a
-- fold: the state becomes new, and the first n elements of the list of changes go.
--
-- Returns 1, or, with nothing done: -1, the fence is not that of the record; -2, there is
-- no record, the generation has ended; 0, the state is another.

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then return -2 end
if string.match(record, '^%d+') ~= ARGV[2] then return -1 end
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3] then return 0 end
-- A fold hardly takes memory, and what it takes it gives back, so that a server that
-- is full should do it; it refuses only what comes first.
redis.call('HDEL', KEYS[1], '')
for i = 4, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 2]) end
if ARGV[4] ~= '' then
  redis.call('LTRIM', KEYS[2], ARGV[5], -1)
  redis.call('SET', KEYS[3], ARGV[4])
end
return 1
