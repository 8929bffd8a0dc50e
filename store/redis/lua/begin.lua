-- Ends the holders of a rank and begins a new generation of it.
-- ARGV  schema partitions pod rank fence
-- Returns the generation; UNREGISTERED when there is no such pod, FENCED when the present
-- generation has a higher fence, both as texts. KVARANK is the answer for a rank that the pod's
-- registration does not have.

local pod, rank, fence = ARGV[3], ARGV[4], ARGV[5]
local change = heal(pod)
if expired(pod) then
  retire(pod)
  change = true
end
if redis.call('HEXISTS', pods, pod) == 0 then
  if change then moved('p' .. pod) end
  return tostring(UNREGISTERED)
end
local problem = beyond(pod, rank)
if problem then
  if change then moved('p' .. pod) end
  return redis.error_reply(problem)
end
local last = redis.call('HGET', own, rank)
if last then
  local record = redis.call('HGET', records, last)
  if record and tonumber(string.match(record, '^%d+') or '0') > tonumber(fence) then
    if change then moved('p' .. pod) end
    return tostring(FENCED)
  end
end
freeing()
given()
problem = full()
if problem then
  if change then moved('p' .. pod) end
  return redis.error_reply(problem)
end
local fields, ids = {}, {}
for _, tier in ipairs({'gpu', 'cpu', 'disk', 'shared'}) do
  fields[#fields + 1] = rank .. '/' .. tier
  fields[#fields + 1] = rank .. '/' .. tier .. '-window'
end
for _, id in ipairs(redis.call('HMGET', own, unpack(fields))) do
  if id then ids[#ids + 1] = id end
end
local before = ended()
if lapse(rank, 0) then change = true end
if #ids > 0 then
  redis.call('HDEL', own, unpack(fields))
  finish(ids)
  change = true
end
if redis.call('HDEL', own, rank .. '/reuse') == 1 then change = true end
if last then forget({last}) end
-- Texts that name the pod stand for its rank 0.
if rank == '0' then
  ending(before)
  change = true
end
local life = more('holder', 1)
redis.call('HSET', own, rank, life)
redis.call('HSET', records, life, fence .. ',0')
keep(pod)
if change then moved('p' .. pod) end
return life
