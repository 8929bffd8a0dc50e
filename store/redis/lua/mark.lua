-- Raises the mark of a partition to at least so much.
-- KEYS  high
-- ARGV  limit
-- Returns what it was, 0 for what is none. Of several who raise the marks at a time to
-- the same limit, one at most finds none of them above what they were.

local last = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%d+$') or '0')
if last > 4026531839 then last = 0 end
if last < tonumber(ARGV[1]) then
  -- A full server refuses a first write that may take memory: this one goes first.
  redis.call('UNLINK', KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
end
return last
