-- Ends the life of a pod and of all its holders.
-- ARGV  schema partitions pod when, which is "always" or "expired"
-- Returns 1 when a pod that was alive has been retired, else 0.

local pod, when = ARGV[3], ARGV[4]
local late = expired(pod)
if when == 'expired' and not late then return 0 end
if redis.call('HEXISTS', pods, pod) == 0 and not late then return 0 end
retire(pod)
moved()
return late and 0 or 1
