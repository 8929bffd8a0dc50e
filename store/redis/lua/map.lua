-- Begins the map of a generation of which nothing has been applied wholly, unless it is
-- there: see compact.lua.
--
-- KEYS  records list

local length = redis.pcall('LLEN', KEYS[2])
if type(length) == 'number' and length > 0 then return 0 end
redis.call('DEL', KEYS[2]) -- a server that is full refuses only what comes first
redis.call('HDEL', KEYS[1], '')
redis.call('RPUSH', KEYS[2], '0,0,0')
return 1
