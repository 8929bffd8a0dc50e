-- Raises the fence of a generation in one place.
-- KEYS  s [live]
-- ARGV  generation fence seq create
-- seq is what the record shall say, "" to leave what it says; a sequence that is
-- under way is forgotten. Without a record it is an error unless create is 1.
-- Returns {APPLIED, seq}. Or it returns, with seq 0: FENCED, the record has a
-- higher fence; ENDED, there is none; LATE, some pod's lease has run out.

if KEYS[2] then
  local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if next[2] then
    local now = redis.call('TIME')
    if tonumber(next[2]) <= now[1] * 1000 + now[2] / 1000 then return {LATE, '0'} end
  end
end
local record = redis.call('HGET', KEYS[1], ARGV[1])
local f, s = string.match(record or '', '^(%d+),(%d+)')
if not f then
  if ARGV[4] ~= '1' then return {ENDED, '0'} end
  f, s = '0', '0'
end
if tonumber(f) > tonumber(ARGV[2]) then return {FENCED, '0'} end
if ARGV[3] ~= '' then s = ARGV[3] end
-- On a full server, too: it refuses only a first write that may take memory.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ',' .. s)
return {APPLIED, s}
