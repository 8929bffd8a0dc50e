-- Switches the log of one place on or off.
--
-- KEYS  logged log
-- ARGV  entries, the length that the log is cut to; 0 is off
--
-- A log is a stream. Each entry is numbered, ascending by 1 (field n), and tells of
-- one change. That is the new epoch (field e), or the new values of blocks. For each
-- value a field, "=" and the value, has the last 8 bytes of the blocks' names one after
-- the other. The value is empty for blocks that are gone. Key logged says that the log
-- is on. It is "entries n" with the number of the last entry, and is written with each,
-- so that a reader sees what is missing. A log that is switched on begins with the time
-- in us, so that no number comes again in another life of it.
-- Returns the number of the last entry, 0 for off.

local last, n = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
if ARGV[1] == '0' then
  redis.call('UNLINK', KEYS[1], KEYS[2])
  return '0'
end
local length = redis.pcall('XLEN', KEYS[2])
if type(length) ~= 'number' then length = 0 end -- a key of another kind is no log
if last == ARGV[1] and length > 0 then return n end
if not n or length == 0 then
  local now = redis.call('TIME')
  n = string.format('%.0f', math.max(now[1] * 1000000 + now[2], (n or 0) + 1))
  redis.call('UNLINK', KEYS[2])
  redis.call('XADD', KEYS[2], '*', 'n', n)
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. n)
return n
