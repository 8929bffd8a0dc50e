-- Keep settings. Their version stands beside the loads too, for book.lua.
-- ARGV  2 the settings
if #ARGV ~= 2 then error('arguments are wrong', 0) end
call('HSET', LOAD, '@', call('HINCRBY', SETTINGS, 'version', '1'))
call('HSET', SETTINGS, 'settings', ARGV[2])
return {}
