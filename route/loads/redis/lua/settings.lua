-- Keep settings.
-- ARGV  2 the settings
redis.call('HINCRBY', SETTINGS, 'version', 1)
redis.call('HSET', SETTINGS, 'settings', ARGV[2])
return {1}
