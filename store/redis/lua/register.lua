-- Registers or renews a pod. One that was registered for another model is retired first.
-- ARGV  schema partitions pod json lease_ms max_pods
-- Returns 1 when the pod is new, else 0.

local pod, json, lease, limit = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local change = heal(pod)
if expired(pod) then
  retire(pod)
  change = true
end
local old = redis.call('HGET', pods, pod)
if old and renamed(old, json) then
  retire(pod)
  old, change = nil, true
end
-- A pod that is there must be able to renew its lease on a full server too.
if old then freeing() end
if not old and redis.call('HLEN', pods) >= limit then
  if change then moved('p' .. pod) end
  return redis.error_reply('KVAFULL pods ' .. ARGV[6])
end
if old ~= json then
  redis.call('HSET', pods, pod, json)
  change = true
  if old then shrink(pod, json) end
end
if not old then
  born = ended()
  keep(pod)
end
if lease > 0 then
  redis.call('ZADD', live, text(now + lease), pod)
else
  redis.call('ZREM', live, pod)
end
if change then moved('p' .. pod) end
return old and 0 or 1
