-- Removes the settings of a model.
-- ARGV  schema partitions field
-- Returns 1 when there were some, else 0.

if redis.call('HDEL', meta, ARGV[3]) == 0 then return 0 end
moved('m')
return 1
