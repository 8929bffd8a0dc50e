-- Makes a pod ready to be written under: registers it when it is not, ends the
-- lives of the holders that a clear names, and gives the ids of holders.
-- ARGV  schema partitions pod json max_pods max_holders reserved
--       clears  then so many times: rank tier, either of them * for all
--       wanted  then so many times: rank tier give, which is 1 to give an id
--               to a holder that has none
-- With reserved 1, which is for a cluster, ids are given only up to the limit
-- that reserve.lua has set.
-- Returns the ids in the order wanted, 0 for a holder that has none.

local pod, json = ARGV[3], ARGV[4]
local change = false
if expired(pod) then
  retire(pod)
  change = true
end
local fresh = redis.call('HEXISTS', pods, pod) == 0
if fresh and redis.call('HLEN', pods) >= tonumber(ARGV[5]) then
  if change then moved() end
  return redis.error_reply('KVAFULL pods ' .. ARGV[5])
end
if fresh then
  redis.call('HSET', pods, pod, json)
  change = true
end

local at = 9
for _ = 1, tonumber(ARGV[8]) do
  local rank, tier = ARGV[at], ARGV[at + 1]
  at = at + 2
  local fields, ids = {}, {}
  if rank ~= '*' and tier ~= '*' then
    local id = redis.call('HGET', own, rank .. '/' .. tier)
    if id then fields[1], ids[1] = rank .. '/' .. tier, id end
  else
    local all = redis.call('HGETALL', own)
    for i = 1, #all, 2 do
      local r, t = string.match(all[i], '^(%d+)/(%a+)$')
      if r and (rank == '*' or rank == r) and (tier == '*' or tier == t) then
        fields[#fields + 1], ids[#ids + 1] = all[i], all[i + 1]
      end
    end
  end
  for i = 1, #fields, 1000 do
    redis.call('HDEL', own, unpack(fields, i, math.min(i + 999, #fields)))
  end
  finish(ids)
  if #ids > 0 then change = true end
end

local out = {}
local problem
for i = 1, tonumber(ARGV[at]) do
  local rank, tier, give = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  at = at + 3
  local field = rank .. '/' .. tier
  local id = redis.call('HGET', own, field)
  if not id and give == '1' then
    if redis.call('HLEN', gen) >= tonumber(ARGV[6]) then
      problem = 'KVAFULL holders ' .. ARGV[6]
      break
    end
    given()
    local next = tonumber(redis.call('HGET', count, 'holder') or '0') + 1
    if ARGV[7] == '1' and next > tonumber(redis.call('HGET', count, 'reserved') or '0') then
      problem = 'KVARESERVE ' .. text(next)
      break
    end
    id = text(redis.call('HINCRBY', count, 'holder', 1))
    -- A generation has the number of its first holder.
    local life = redis.call('HGET', own, rank)
    if not life then
      life = id
      redis.call('HSET', own, rank, life)
    end
    redis.call('HSET', own, field, id)
    redis.call('HSET', gen, id, tier .. ' ' .. rank .. ' ' .. life .. ' ' .. text(now) .. ' ' .. pod)
    change = true
  end
  out[i] = id or '0'
end
if change then moved() end
if problem then return redis.error_reply(problem) end
return out
