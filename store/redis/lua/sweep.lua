-- Holds, or ends, the right to sweep.
--
-- KEYS  sweep count
-- ARGV  token lease_ms ended
--
-- The right is the key sweep with the token of its owner, for a time. With an
-- empty ended it is taken or renewed; else the sweep that knew so many ended
-- lives is complete, which is written down, and the right given back.
-- Returns 1, or 0 when the right is another's.

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if ARGV[3] == '' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if not owner then return 0 end
redis.call('HSET', KEYS[2], 'swept', ARGV[3])
redis.call('DEL', KEYS[1])
return 1
