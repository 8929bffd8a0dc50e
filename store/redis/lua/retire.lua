-- Ends the life of a pod and of all its holders.
-- ARGV  schema partitions pod when, which is "always" or "expired"
-- Returns 1 when a pod that was alive has been retired, else 0.

local pod, when = ARGV[3], ARGV[4]
local healed, late = heal(pod), expired(pod)
if not late and (when == 'expired' or redis.call('HEXISTS', pods, pod) == 0) then
  if healed then moved('p' .. pod) end
  return 0
end
retire(pod)
moved('p' .. pod)
return late and 0 or 1
