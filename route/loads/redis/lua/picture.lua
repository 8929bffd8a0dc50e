-- All loads, and what engines say.
-- ARGV  2 how many ids of overdue reservations are wanted
-- Reply  ids, now, loads, settings, their version, engines, 1 if there are more reservations than leases, else 0
local most = tonumber(ARGV[2])
if not (#ARGV == 2 and most and most >= 0) then error('arguments are wrong', 0) end
local reserved = call('HLEN', RES)
local last = string.format('%d', reserved - 1)
local lacks = reserved > 0 and #call('ZRANGE', LEASE, last, last) == 0
return {call('ZRANGE', LEASE, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', '0', ARGV[2]), pack('<d', now), call('HGETALL', LOAD),
  call('HGET', SETTINGS, 'settings') or '', call('HGET', SETTINGS, 'version') or '0', call('HGETALL', ENGINES), lacks and 1 or 0}
