-- What all scripts of the registry begin with.
--
-- KEYS  meta count epoch pods live gen s own [logged log]
-- ARGV  schema partitions ...
--
-- Behind the schema, after a space, there may be a latest time, in ms of this server's
-- TIME: later nothing is done, and the answer is KVALATE with the time.
--
-- Times are this server's. An id or an epoch is never given twice, also when
-- the server has lost its latest writes or all of them: see moved().
--
-- gen has, beside the ids, of each pod the field '@' .. pod: "born" and a copy of
-- own, "born field id field id ...". born is the number of ended lives when the
-- pod's present one began. The field '@' is the latest news: a line with an epoch
-- before which nothing is known, then a line for each change, "epoch what".

local meta, count, epoch, pods, live, gen, records, own = unpack(KEYS)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function text(n) return string.format('%.0f', n) end

local schema, latest = string.match(ARGV[1], '^(%S*) ?(%d*)$')
if latest ~= '' and now >= tonumber(latest) then return redis.error_reply('KVALATE ' .. text(now)) end

local found = redis.call('HMGET', meta, 'schema', 'partitions')
if not found[1] and not found[2] then
  redis.call('HSET', meta, 'schema', schema, 'partitions', ARGV[2])
elseif found[1] ~= schema or found[2] ~= ARGV[2] then
  return redis.error_reply('KVASCHEMA ' .. tostring(found[1]) .. ' ' .. tostring(found[2]))
end

-- freeing goes before what must also be done on a server that is full. Such a
-- server refuses the first write of a script if it may take memory, and only the
-- first: one that takes none, and does nothing, opens the way.
local function freeing() redis.call('HDEL', own, '') end

-- given is called before ids are taken from the counters. In another process
-- than the last time, which may have lost the latest ids, they jump ahead.
local checked, jumped = false, false
local function given()
  if checked then return end
  checked = true
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local last = redis.call('HGET', count, 'run')
  if last == run then return end
  if last then
    redis.call('HINCRBY', count, 'holder', 4096)
    redis.call('INCRBY', epoch, 1073741824) -- 18 minutes
    jumped = true
  end
  redis.call('HSET', count, 'run', run)
end

-- tell adds a move of the epoch to the log, if that is on. Who leaves its keys out
-- makes replicas see it later.
local function tell(e)
  local logged, log = KEYS[9], KEYS[10]
  local limit, n = string.match(log and redis.call('GET', logged) or '', '^(%d+) (%d+)$')
  if not limit then return end
  n = text(n + 1)
  local reply = redis.pcall('XADD', log, 'MAXLEN', '~', limit, '*', 'n', n, 'e', e)
  if type(reply) == 'table' and reply.err then
    redis.call('UNLINK', logged) -- off, as readers see: it is no stream
  else
    redis.call('SET', logged, limit .. ' ' .. n)
  end
end

-- moved sets the epoch to the time in us, or one higher than it was, and writes
-- down what has changed: 'p' .. pod, 'm' the models, 's' how far it is swept, or
-- 'a' anything. A reader whose registry is not older than the first line of the
-- news reads only what they name.
local function moved(what)
  given()
  local news = redis.call('HGET', gen, '@')
  -- The epoch may have been lost, and the time is that of the last one perhaps.
  local told = news and tonumber(string.match(news, '\n(%d+) [^\n]*\n$')) or 0
  local last = tonumber(redis.call('GET', epoch) or told) or told
  -- In us, since more than one change comes in a ms: an epoch that runs ahead of the
  -- clock could come again when all is lost.
  local e = text(math.max(last + 1, told + 1, time[1] * 1000000 + time[2]))
  redis.call('SET', epoch, e)
  if jumped or not news or last ~= told then
    -- New, or somebody else has moved the epoch.
    news = e .. '\n' .. e .. ' a\n'
  else
    news = news .. e .. ' ' .. (what or 'a') .. '\n'
    if #news > 8192 then
      -- The older half goes; the first line is then the last that went.
      local cut = string.find(news, '\n', 4096, true)
      local gone = string.match(string.sub(news, 1, cut), '\n(%d+) [^\n]*\n$')
      news = gone .. '\n' .. string.sub(news, cut + 1)
    end
  end
  redis.call('HSET', gen, '@', news)
  tell(e)
  return e
end

-- finish ends the lives of holders.
local function finish(ids)
  local ended = 0
  for i = 1, #ids, 1000 do
    ended = ended + redis.call('HDEL', gen, unpack(ids, i, math.min(i + 999, #ids)))
  end
  if ended > 0 then redis.call('HINCRBY', count, 'ended', ended) end
end

-- forget removes the records of generations, which ends them.
local function forget(lives)
  local ended = 0
  for i = 1, #lives, 1000 do
    ended = ended + redis.call('HDEL', records, unpack(lives, i, math.min(i + 999, #lives)))
  end
  if ended > 0 then redis.call('HINCRBY', count, 'ended', ended) end
end

-- full says that the limit of ids has to be raised before the next one is given;
-- it is nil when not.
local function full()
  local next = tonumber(redis.call('HGET', count, 'holder') or '0') + 1
  if next > tonumber(redis.call('HGET', count, 'reserved') or '0') then return 'KVARESERVE ' .. text(next) end
end

-- born is what begins the pod's entry '@' .. pod; ending() is the next one's. It
-- counts as an ended life what had no holder, too: texts that name the pod.
local born = '0'
local function ended() return redis.call('HGET', count, 'ended') or '0' end
local function ending(before)
  if ended() == before then redis.call('HINCRBY', count, 'ended', 1) end
  born = ended()
end

-- keep writes the pod's entry, after own has changed.
local function keep(pod)
  local all = redis.call('HGETALL', own)
  table.insert(all, 1, born)
  redis.call('HSET', gen, '@' .. pod, table.concat(all, ' '))
end

-- retire ends the life of the pod that own belongs to. Among the values of own
-- are the generations of its ranks, which are ids of holders of this life too.
local function retire(pod)
  freeing()
  local ids, before = redis.call('HVALS', own), ended()
  finish(ids)
  forget(ids)
  ending(before)
  redis.call('UNLINK', own)
  redis.call('HDEL', gen, '@' .. pod)
  redis.call('HDEL', pods, pod)
  redis.call('ZREM', live, pod)
end

-- heal is called before own is used. Any key may have been evicted, or deleted:
--
--   own alone   is made again of its copy, or the ids in it would never end
--   gen alone   has taken all ids with it: the lives in own are over
--   pods alone  has ended the pod's life, or its next one would have the ids
--
-- It returns true when readers have to know.
local function heal(pod)
  local copy = redis.call('HGET', gen, '@' .. pod)
  local there = redis.call('HLEN', own) > 0
  if copy then born = string.match(copy, '^%d+') or '0' end
  if copy and not there then
    local words = {}
    for w in string.gmatch(copy, '%S+') do words[#words + 1] = w end
    for i = 2, #words - 1, 1000 do
      freeing()
      redis.call('HSET', own, unpack(words, i, math.min(i + 999, #words)))
    end
  end
  if redis.call('HEXISTS', pods, pod) == 0 then
    if not copy and not there then return false end
    retire(pod)
    return true
  end
  if copy then return false end
  freeing()
  local ids, before = redis.call('HVALS', own), ended()
  finish(ids)
  forget(ids)
  ending(before)
  redis.call('UNLINK', own)
  keep(pod)
  return true
end

-- ranks is how many ranks a registration declares, 0 for none that can be told.
local function ranks(json)
  local good, reg = pcall(cjson.decode, json)
  return good and type(reg) == 'table' and tonumber(reg.ranks) or 0
end

-- beyond returns what is wrong when the pod's registration does not have the rank.
local function beyond(pod, rank)
  local n = ranks(redis.call('HGET', pods, pod) or '')
  if n > 0 and tonumber(rank) >= n then return 'KVARANK ' .. rank .. ' ' .. text(n) .. ' ' .. pod end
end

-- shrink ends the ranks that a registration does not have. It returns true when there
-- are some.
local function shrink(pod, json)
  local n = ranks(json)
  if n == 0 then return false end
  local fields, ids = {}, {}
  local all = redis.call('HGETALL', own)
  for i = 1, #all, 2 do
    local rank = tonumber(string.match(all[i], '^%d+') or '-1')
    if rank >= n then
      fields[#fields + 1], ids[#ids + 1] = all[i], all[i + 1]
    end
  end
  if #fields == 0 then return false end
  for i = 1, #fields, 1000 do
    redis.call('HDEL', own, unpack(fields, i, math.min(i + 999, #fields)))
  end
  finish(ids)
  forget(ids)
  keep(pod)
  return true
end

-- renamed tells whether two registrations of a pod are for different models. One that
-- cannot be read is for none.
local function renamed(old, new)
  local read, a = pcall(cjson.decode, old)
  local _, b = pcall(cjson.decode, new)
  return read and type(a) == 'table' and type(b) == 'table' and type(a.model) == 'string' and a.model ~= b.model
end

local function expired(pod)
  local till = redis.call('ZSCORE', live, pod)
  return till and tonumber(till) <= now
end
