-- Makes a pod ready to be written under. It registers the pod when it is not, ends the
-- holders that a clear names, and gives the ids of holders. With an empty json a pod
-- that is not registered stays so, and has no holders.
-- ARGV  schema partitions pod json max_pods max_holders
--       guards  then so many times: rank generation fence seq after clears,
--               which is 1 when clears of the sequence are among those below
--       clears  then so many times: rank tier, either of them * for all
--       wanted  then so many times: rank tier give, which is 1 to give an id
--               to a holder that has none. A rank has up to 8 in tiers predicted-<end>;
--               the one that ends first makes room
--       said    or nothing; then so many times: rank reuse, which replaces what
--               is known of the rank's engine
-- Ids are given up to the limit that reserve.lua has set, and to ranks that the pod's
-- registration has: KVARANK is the answer for others.
-- Returns what judge says to each guard. If that is APPLIED to all of them, the ids
-- follow in the order wanted, 0 for a holder that has none. Else nothing is done.
-- Clears under a guard are made once a sequence, and say so in the record.

local pod, json = ARGV[3], ARGV[4]
local change = heal(pod)
if expired(pod) then
  retire(pod)
  change = true
end

local out = {}
local at = 8
local refused, begun, done = false, {}, {}
for i = 1, tonumber(ARGV[7]) do
  local rank, life, fence, seq, after, clears = unpack(ARGV, at, at + 5)
  at = at + 6
  local s, next
  if redis.call('HGET', own, rank) == life then
    out[i], s, next = judge(redis.call('HGET', records, life), fence, seq, after)
  else
    out[i] = ENDED
  end
  if out[i] ~= APPLIED then
    refused = true
  elseif clears == '1' then
    done[rank] = next == seq
    if next ~= seq then
      begun[#begun + 1] = life
      begun[#begun + 1] = table.concat({fence, s, seq, '0', '0'}, ',')
    end
  end
end
if refused then
  if change then moved('p' .. pod) end
  return out
end
local guards = #out

local fresh = redis.call('HEXISTS', pods, pod) == 0
if fresh and json == '' then
  for i = 1, tonumber(ARGV[at + 1 + 2 * tonumber(ARGV[at])]) do out[guards + i] = '0' end
  if change then moved('p' .. pod) end
  return out
end
if fresh and redis.call('HLEN', pods) >= tonumber(ARGV[5]) then
  if change then moved('p' .. pod) end
  return redis.error_reply('KVAFULL pods ' .. ARGV[5])
end
local kept = true
if fresh then
  redis.call('HSET', pods, pod, json)
  born = ended()
  keep(pod)
  change = true
end

local clears = tonumber(ARGV[at])
local before, texts = ended(), false
if clears > 0 then freeing() end
at = at + 1
for _ = 1, clears do
  local rank, tier = ARGV[at], ARGV[at + 1]
  at = at + 2
  local fields, ids = {}, {}
  if done[rank] then
    -- An earlier try at this sequence has cleared it.
  elseif rank ~= '*' and tier ~= '*' then
    for _, field in ipairs({rank .. '/' .. tier, rank .. '/' .. tier .. '-window'}) do
      local id = redis.call('HGET', own, field)
      if id then fields[#fields + 1], ids[#ids + 1] = field, id end
    end
    if tier == 'gpu' and lapse(rank, 0) then change, kept = true, false end
  else
    local all = redis.call('HGETALL', own)
    for i = 1, #all, 2 do
      local r, t = string.match(all[i], '^(%d+)/(%a+)')
      if t == 'predicted' then t = 'gpu' end
      if r and t ~= 'reuse' and (rank == '*' or rank == r) and (tier == '*' or tier == t) then
        fields[#fields + 1], ids[#ids + 1] = all[i], all[i + 1]
      end
    end
  end
  for i = 1, #fields, 1000 do
    redis.call('HDEL', own, unpack(fields, i, math.min(i + 999, #fields)))
  end
  finish(ids)
  if #ids > 0 then change, kept = true, false end
  -- Texts that name the pod stand for its rank 0 in tier gpu.
  if not done[rank] and (rank == '*' or rank == '0') and (tier == '*' or tier == 'gpu') then texts = true end
end
if texts then
  ending(before)
  change, kept = true, false
end

if #begun > 0 then redis.call('HSET', records, unpack(begun)) end

local problem
for i = 1, tonumber(ARGV[at]) do
  local rank, tier, give = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  at = at + 3
  local field = rank .. '/' .. tier
  local id = redis.call('HGET', own, field)
  if not id and give == '1' and string.find(tier, '^predicted%-') and lapse(rank, 7) then change, kept = true, false end
  if not id and give == '1' then
    -- gen has an entry of each pod, and the news.
    if redis.call('HLEN', gen) - redis.call('HLEN', pods) - redis.call('HEXISTS', gen, '@') >= tonumber(ARGV[6]) then
      problem = 'KVAFULL holders ' .. ARGV[6]
      break
    end
    problem = beyond(pod, rank)
    if problem then break end
    given()
    problem = full()
    if problem then break end
    id = more('holder', 1)
    -- A generation has the number of its first holder.
    local life = redis.call('HGET', own, rank)
    if not life then
      life = id
      redis.call('HSET', own, rank, life)
    end
    redis.call('HSET', own, field, id)
    redis.call('HSET', gen, id, tier .. ' ' .. rank .. ' ' .. life .. ' ' .. text(now) .. ' ' .. pod)
    change, kept = true, false
  end
  out[guards + i] = id or '0'
end
for i = 1, problem and 0 or tonumber(ARGV[at + 1] or '0') do
  local rank, reuse = ARGV[at + 2 * i], ARGV[at + 2 * i + 1]
  if redis.call('HGET', own, rank .. '/reuse') ~= reuse and not beyond(pod, rank) then
    redis.call('HSET', own, rank .. '/reuse', reuse)
    change, kept = true, false
  end
end
if not kept then keep(pod) end
if change then moved('p' .. pod) end
if problem then return redis.error_reply(problem) end
return out
