-- Holds, or ends, the right to sweep.
--
-- KEYS  those of registry.lua, and at the end sweep
-- ARGV  schema partitions token lease_ms ended
--
-- The right is the key sweep with the token of its owner, for a time. With an
-- empty ended it is taken or renewed. Else the sweep that knew so many ended
-- lives is complete, which is written down, and the right given back.
-- Returns 1, or 0 when the right is another's.

local sweep, token, lease, done = KEYS[#KEYS], ARGV[3], ARGV[4], ARGV[5]
local owner = redis.call('GET', sweep)
if owner and owner ~= token then return 0 end
-- On a full server, too, which needs it most.
freeing()
if done == '' then
  redis.call('SET', sweep, token, 'PX', lease)
  return 1
end
if not owner then return 0 end
redis.call('DEL', sweep)
-- Texts that name a pod count when all of its former lives have been swept.
if tonumber(redis.call('HGET', count, 'swept') or '0') < tonumber(done) then moved('s') end
redis.call('HSET', count, 'swept', done, 'swept_at', text(now))
return 1
