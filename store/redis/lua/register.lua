-- Registers or renews a pod.
-- ARGV  schema partitions pod json lease_ms max_pods
-- Returns 1 when the pod is new, else 0.

local pod, json, lease, limit = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local change = false
if expired(pod) then
  retire(pod)
  change = true
end
local old = redis.call('HGET', pods, pod)
if not old and redis.call('HLEN', pods) >= limit then
  if change then moved() end
  return redis.error_reply('KVAFULL pods ' .. ARGV[6])
end
if old ~= json then
  redis.call('HSET', pods, pod, json)
  change = true
end
if lease > 0 then
  redis.call('ZADD', live, text(now + lease), pod)
else
  redis.call('ZREM', live, pod)
end
if change then moved() end
return old and 0 or 1
