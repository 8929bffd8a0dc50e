-- Fixes the settings of a model, unless they are.
-- ARGV  schema partitions field json max_models
-- Returns the settings in force.

local field, json = ARGV[3], ARGV[4]
local old = redis.call('HGET', meta, field)
if old then return old end
-- schema, partitions and perhaps log are the fields that are no models.
if redis.call('HLEN', meta) - 2 - redis.call('HEXISTS', meta, 'log') >= tonumber(ARGV[5]) then
  return redis.error_reply('KVAFULL models ' .. ARGV[5])
end
redis.call('HSET', meta, field, json)
moved('m')
return json
