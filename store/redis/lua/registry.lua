-- What all scripts of the registry begin with.
--
-- KEYS  meta count epoch pods live gen s own [logged log]
-- ARGV  schema partitions ...
--
-- Times are this server's. An id or an epoch is never given twice, also when
-- the server has lost its latest writes or all of them: see moved().

local meta, count, epoch, pods, live, gen, records, own = unpack(KEYS)

local found = redis.call('HMGET', meta, 'schema', 'partitions')
if not found[1] and not found[2] then
  redis.call('HSET', meta, 'schema', ARGV[1], 'partitions', ARGV[2])
elseif found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then
  return redis.error_reply('KVASCHEMA ' .. tostring(found[1]) .. ' ' .. tostring(found[2]))
end

local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)

local function text(n) return string.format('%.0f', n) end

-- given is called before ids are taken from the counters. In another process
-- than the last time, which may have lost the latest ids, they jump ahead.
local checked = false
local function given()
  if checked then return end
  checked = true
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local last = redis.call('HGET', count, 'run')
  if last == run then return end
  if last then
    redis.call('HINCRBY', count, 'holder', 4096)
    redis.call('INCRBY', epoch, 1048576)
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

-- moved sets the epoch to the time in ms, or one higher than it was.
local function moved()
  given()
  local last = tonumber(redis.call('GET', epoch) or '0') or 0
  local e = text(math.max(last + 1, now))
  redis.call('SET', epoch, e)
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

-- retire ends the life of the pod that own belongs to. Among the values of own
-- are the generations of its ranks, which are ids of holders of this life too.
local function retire(pod)
  local ids = redis.call('HVALS', own)
  finish(ids)
  forget(ids)
  redis.call('UNLINK', own)
  redis.call('HDEL', pods, pod)
  redis.call('ZREM', live, pod)
end

local function expired(pod)
  local till = redis.call('ZSCORE', live, pod)
  return till and tonumber(till) <= now
end
