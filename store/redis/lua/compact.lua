-- Writes pages of the map of a generation, and takes from its list the changes that are
-- in the pages by then.
--
-- KEYS  records list folder page...
-- ARGV  generation fence token old new n page...
--
-- The first element of the list is the state, "compactions,pages,entries", and is compared with
-- old: who has read another one has read other pages.
--
-- A first call has no pages, and new is "": from it on, until the next one, only calls
-- with its token write. What is put into pages is to be read after it. Otherwise a compaction
-- that is slow would write pages over those of one that came later. With new not "" it
-- is the last call: the state becomes new, and the first n changes go.
--
-- Returns APPLIED, or one of these with nothing done. FENCED: the fence is not that of
-- the record. ENDED: there is no record. COMPACTED: the state, the token or the list is
-- another.

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then return ENDED end
if string.match(record, '^%d+') ~= ARGV[2] then return FENCED end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[4] then return COMPACTED end
-- A compaction hardly takes memory, and what it takes it gives back, so a server that is full
-- should do it. Such a server refuses only what comes first.
redis.call('HDEL', KEYS[1], '')
if #KEYS == 3 and ARGV[5] == '' then
  redis.call('SET', KEYS[3], ARGV[3])
  return APPLIED
end
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return COMPACTED end
-- A failover may have taken changes away that are to go: the compaction has others then.
if ARGV[5] ~= '' and redis.call('LLEN', KEYS[2]) <= tonumber(ARGV[6]) then return COMPACTED end
for i = 4, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 3]) end
if ARGV[5] ~= '' then
  redis.call('LTRIM', KEYS[2], ARGV[6], -1) -- the last of them becomes the state
  redis.call('LSET', KEYS[2], 0, ARGV[5])
end
return APPLIED
