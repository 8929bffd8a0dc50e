-- A request is over.
-- ARGV  2 id
local r = find(ARGV[2])
if not r then return {} end
finish(ARGV[2], r)
return report(r, r, true)
