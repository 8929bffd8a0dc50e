-- Renews the life of a reader, gives and takes ranks, and says who reads what.
-- Behind the KEYS of registry.lua: readers leases
-- ARGV  schema partitions name ranks ttl_ms version max_readers max_leases
--       after acquire
--       then so many fields to acquire, and fields to release: "rank pod"
-- readers has of each reader, as "name ranks", until when it lives by this server's
-- time; leases has of each field "fence name". In count the field 'lease' is the last
-- number given, fence or version, and the run_id of the server that gave it.
-- Returns {version, 1 when the caller was not alive, {reader...}, {field, lease...}}.
-- The last is missing while the version is the one in ARGV, and when that is '-'. It is
-- the number of leases when they are more than 256, to be read by HSCAN: no script runs
-- for long. For the same reason a call with more than 128 fields is made as several.

local readers, leases = KEYS[#KEYS - 1], KEYS[#KEYS]
local name, ranks, ttl, version = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local max_readers, max_leases, after, acquire = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

-- Who lives. Those that have been dead for an hour go.
local living, members, mine = {}, {}, nil
local all = redis.call('ZRANGE', readers, 0, -1, 'WITHSCORES')
local gone = {}
for i = 1, #all, 2 do
  local who = string.match(all[i], '^[^ ]*')
  if who == name then
    mine = {all[i], tonumber(all[i + 1]) > now}
  elseif tonumber(all[i + 1]) > now then
    living[who] = true
    members[#members + 1] = all[i]
  elseif tonumber(all[i + 1]) <= now - 3600000 then
    gone[#gone + 1] = all[i]
  end
end
local lapsed = not (mine and mine[2])
local self = name .. ' ' .. ranks
if ttl > 0 and lapsed and #members >= max_readers then
  return redis.error_reply('KVAFULL readers ' .. ARGV[7])
end

-- What is to be done. The caller may take what is its own and what is a dead one's.
local fields, was = {}, {}
for i = 11, #ARGV do fields[#fields + 1] = ARGV[i] end
for i = 1, #fields, 1000 do
  for _, v in ipairs(redis.call('HMGET', leases, unpack(fields, i, math.min(i + 999, #fields)))) do was[#was + 1] = v end
end
local function takes(lease)
  local who = string.match(lease, ' (.*)$')
  return who == name or not living[who]
end
local take, drop, fresh = {}, {}, 0
for i, f in ipairs(fields) do
  if i <= acquire then
    if not was[i] then fresh = fresh + 1 end
    if not was[i] or takes(was[i]) then take[#take + 1] = f end
  elseif was[i] and takes(was[i]) then
    drop[#drop + 1] = f
  end
end
if fresh > 0 and redis.call('HLEN', leases) + fresh > max_leases then
  return redis.error_reply('KVAFULL ranks-with-readers ' .. ARGV[8])
end

freeing()
if #gone > 0 then redis.call('ZREM', readers, unpack(gone, 1, math.min(#gone, 1000))) end
if mine and (mine[1] ~= self or ttl == 0) then redis.call('ZREM', readers, mine[1]) end
if ttl > 0 then
  redis.call('ZADD', readers, text(now + ttl), self)
  members[#members + 1] = self
end

-- The numbers are the time in us, or one more than the last. A server that has lost
-- the last ones of another, whose clock may have been ahead, begins half an hour
-- later. Where count has been lost and leases have not, they tell.
local last, run = string.match(redis.call('HGET', count, 'lease') or '', '^(%d+) (%x+)$')
last = tonumber(last or '0')
if #take > 0 or #drop > 0 or not run then
  local here = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local at = redis.call('TIME')
  local first = at[1] * 1000000 + at[2]
  if not run then
    for _, v in ipairs(redis.call('HVALS', leases)) do
      last = math.max(last, tonumber(string.match(v, '^%d+') or '0'))
    end
  end
  if #take > 0 then last = math.max(last, after) end
  if run and run ~= here then first = math.max(first, last) + 1800000000 end
  last = math.max(first, last + 1)
  for i = 1, #drop, 1000 do
    redis.call('HDEL', leases, unpack(drop, i, math.min(i + 999, #drop)))
  end
  local set = {}
  for _, f in ipairs(take) do
    last = last + 1
    set[#set + 1] = f
    set[#set + 1] = text(last) .. ' ' .. name
  end
  for i = 1, #set, 1000 do
    redis.call('HSET', leases, unpack(set, i, math.min(i + 999, #set)))
  end
  redis.call('HSET', count, 'lease', text(last) .. ' ' .. here)
end

local reply = {text(last), lapsed and 1 or 0, members}
if version ~= '-' and text(last) ~= version then
  local n = redis.call('HLEN', leases)
  reply[4] = n > 256 and n or redis.call('HGETALL', leases)
end
return reply
