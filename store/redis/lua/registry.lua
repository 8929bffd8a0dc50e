-- What all scripts of the registry begin with.
--
-- KEYS  meta count epoch pods live gen s own [logged log]
-- ARGV  schema partitions ...
--
-- Behind the schema, after a space, there may be a latest time, in ms of this server's
-- TIME. Later nothing is done, and the answer is KVALATE with the time.
--
-- Times are this server's. An id or an epoch is never given twice, also when
-- the server has lost its latest writes or all of them: see moved().
--
-- Beside the ids, gen has of each pod the field '@' .. pod: "born" and a copy of
-- own, "born field id field id ...". The number born is how many lives had ended
-- when the pod's present one began. The field '@' is the latest news: a line with
-- an epoch before which nothing is known, then a line for each change: "epoch what".

local meta, count, epoch, pods, live, gen, records, own = unpack(KEYS)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function text(n) return string.format('%.0f', n) end

local schema, latest = string.match(ARGV[1], '^(%S*) ?(%d*)$')
if latest ~= '' and now >= tonumber(latest) then return redis.error_reply('KVALATE ' .. text(now)) end

-- An error between two writes would leave half of a change, which whoever makes it
-- again takes for the whole. So a key of another type is refused before the first.
for _, look in ipairs({
  {'HGET', meta, ''}, {'HGET', count, ''}, {'GET', epoch}, {'HGET', pods, ''},
  {'ZSCORE', live, ''}, {'HGET', gen, ''}, {'HGET', records, ''}, {'HGET', own, ''},
}) do
  local reply = redis.pcall(unpack(look))
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
    return redis.error_reply('WRONGTYPE the registry has the key ' .. look[2] .. ', which is of another type: UNLINK it')
  end
end

local found = redis.call('HMGET', meta, 'schema', 'partitions', 'holder', 'ended')
if not found[1] and not found[2] then
  redis.call('HSET', meta, 'schema', schema, 'partitions', ARGV[2])
elseif found[1] ~= schema or found[2] ~= ARGV[2] then
  return redis.error_reply('KVASCHEMA ' .. tostring(found[1]) .. ' ' .. tostring(found[2]))
end

-- freeing goes before what must also be done on a server that is full. Such a server
-- refuses the first write of a script if it may take memory, and only the first. One
-- that takes none, and does nothing, opens the way.
local function freeing() redis.call('HDEL', own, '') end

-- number reads what a script has written as a number; it is -1 for what is none.
local function number(v)
  local n = tonumber(string.match(v or '0', '^%d+$') or '-1')
  return n < 9007199254740992 and n or -1
end

-- more raises a counter by n. Its copy in meta tells when somebody sets it back.
local function more(field, n)
  n = text(redis.call('HINCRBY', count, field, n))
  redis.call('HSET', meta, field, n)
  return n
end

-- Counters that are lost or cannot be. Ids begin anew above all marks (see reserve.lua).
-- More lives have ended than can ever have been counted, as pods remember how many had
-- when they were born.
local counted = redis.call('HMGET', count, 'holder', 'reserved', 'ended', 'swept')
local holder, reserved, over, swept = number(counted[1]), number(counted[2]), number(counted[3]), number(counted[4])
local copied, copiedOver = number(found[3]), number(found[4])
if not (counted[1] and found[3]) and (counted[1] or counted[2]) or holder < copied or copied < 0
  or holder < 0 or holder > 4026531839 or reserved < 0 or reserved > 4026531839 then
  redis.call('HDEL', count, 'holder', 'reserved')
end
if swept < 0 then redis.call('HDEL', count, 'swept') end
if over < math.max(copiedOver, swept, 0) or copiedOver < 0 or not counted[3] and redis.call('HEXISTS', gen, '@') == 1 then
  freeing()
  redis.call('HSET', count, 'ended', '0')
  more('ended', text(math.max(math.floor(now / 1000), over + 1, copiedOver + 1, swept + 1)))
end

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
    more('holder', 4096)
    -- 18 minutes, and up to 5 more that are this process's and this moment's own. Two that
    -- begin with the same dump, or one that does so twice, would give the same epochs to
    -- different histories.
    local own_part = (tonumber(string.sub(run, 1, 7), 16) + time[1] * 1000000 + time[2]) % 268435456
    redis.call('SET', epoch, text(math.max(number(redis.call('GET', epoch)), 0) + 1073741824 + own_part))
    jumped = true
  end
  redis.call('HSET', count, 'run', run)
end

-- tell adds a move of the epoch to the log, if that is on. Who leaves its keys out
-- makes replicas see it later.
local function tell(e)
  local logged, log = KEYS[9], KEYS[10]
  local state = log and redis.pcall('GET', logged)
  local limit, n = string.match(type(state) == 'string' and state or '', '^(%d+) (%d+)$')
  if not limit then return end -- off, as readers see
  n = text(n + 1)
  local reply = redis.pcall('XADD', log, 'MAXLEN', '~', limit, '*', 'n', n, 'e', e)
  if type(reply) == 'table' and reply.err then
    redis.call('UNLINK', logged) -- off, as readers see: it is no stream
  else
    redis.call('SET', logged, limit .. ' ' .. n)
  end
end

-- moved sets the epoch to the time in us, or one higher than it was. It writes
-- down what has changed: 'p' .. pod, 'm' the models, 's' how far it is swept, or
-- 'a' anything. A reader whose registry is not older than the first line of the
-- news reads only what they name.
local function moved(what)
  given()
  local news = redis.call('HGET', gen, '@')
  if not news then more('ended', 0) end -- from here on it is there
  -- The epoch may have been lost, and the time is that of the last one perhaps.
  local told = math.max(number(news and string.match(news, '\n(%d+) [^\n]*\n$')), 0)
  local last = number(redis.call('GET', epoch) or text(told))
  if last < 0 then last = told end
  -- In us, since more than one change comes in a ms. An epoch that runs ahead of the
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
  if ended > 0 then more('ended', ended) end
end

-- forget removes the records of generations, which ends them.
local function forget(lives)
  local ended = 0
  for i = 1, #lives, 1000 do
    ended = ended + redis.call('HDEL', records, unpack(lives, i, math.min(i + 999, #lives)))
  end
  if ended > 0 then more('ended', ended) end
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
  if ended() == before then more('ended', 1) end
  born = ended()
end

-- keep writes the pod's entry, after own has changed.
local function keep(pod)
  local all = redis.call('HGETALL', own)
  table.insert(all, 1, born)
  redis.call('HSET', gen, '@' .. pod, table.concat(all, ' '))
end

-- registered reports whether the pod has a registration that readers can read.
local function registered(pod)
  local json = redis.call('HGET', pods, pod)
  if not json then return false end
  local good, reg = pcall(cjson.decode, json)
  return good and type(reg) == 'table' and reg.name == pod
end

-- held has the fields and values of own once heal has found that its copy says the same. A
-- script has written both then, so the ids are the pod's.
local held

-- lives returns the ids and generations in own. Unless that is held, they are also those
-- in the copy, but no id that is another pod's.
local function lives(pod, copy)
  local list = {}
  for i = 2, held and #held or 0, 2 do list[#list + 1] = held[i] end
  if held then return list end
  local all, n = redis.call('HVALS', own), 0
  for word in string.gmatch(copy or '', '%S+') do
    n = n + 1
    if n > 1 and n % 2 == 1 then all[#all + 1] = word end
  end
  for i = 1, #all, 1000 do
    local part = {unpack(all, i, math.min(i + 999, #all))}
    for j, said in ipairs(redis.call('HMGET', gen, unpack(part))) do
      local whose = said and string.match(said, '^%S+ %S+ %S+ %S+ (.*)$')
      if number(part[j]) > 0 and (not whose or whose == pod) then list[#list + 1] = part[j] end
    end
  end
  return list
end

-- finishAll ends all lives in own, and those in its copy if one is given. Among the values
-- of own are the generations of its ranks, which are ids of holders of this life too.
local function finishAll(pod, copy)
  freeing()
  local ids, before = lives(pod, copy), ended()
  finish(ids)
  forget(ids)
  ending(before)
  redis.call('UNLINK', own)
end

-- retire ends the life of the pod that own belongs to.
local function retire(pod)
  finishAll(pod)
  redis.call('HDEL', gen, '@' .. pod)
  redis.call('HDEL', pods, pod)
  redis.call('ZREM', live, pod)
end

-- compare returns the word born of a copy that has the same fields and values as own, or nil.
local function compare(copy, all)
  local first, rest = string.match(copy or '', '^(%d+) (.*)$')
  if not first or number(first) < 0 then return nil end
  if rest == table.concat(all, ' ') then return first end
  -- A big hash is in another order while it grows, and when a server has loaded it.
  local left, length = {}, #first
  for i = 1, #all, 2 do left[all[i]] = all[i + 1] end
  for field, value in string.gmatch(rest, '(%S+) (%S+)') do
    if left[field] ~= value then return nil end
    left[field] = nil
    length = length + 2 + #field + #value
  end
  return not next(left) and length == #copy and first or nil
end

-- restore makes own again of its copy. It returns the copy's word born, or nil if a script
-- has not written it like this.
local function restore(pod, copy)
  local words = {}
  for w in string.gmatch(copy or '', '%S+') do words[#words + 1] = w end
  if #words % 2 == 0 or number(words[1]) < 0 or table.concat(words, ' ') ~= copy then return nil end
  for i = 2, #words, 2 do
    local rank, tier = string.match(words[i], '^(%d+)/(.*)$')
    if tier ~= 'reuse' and number(words[i + 1]) <= 0 then return nil end
    if tier and tier ~= 'reuse' then
      -- Each id must be that of its holder, or blocks would be written under another's.
      local said = redis.call('HGET', gen, words[i + 1]) or ''
      local t, r, whose = string.match(said, '^(%S+) (%S+) %S+ %S+ (.*)$')
      if t ~= tier or r ~= rank or whose ~= pod then return nil end
    end
  end
  for i = 2, #words, 1000 do
    freeing()
    redis.call('HSET', own, unpack(words, i, math.min(i + 999, #words)))
  end
  return words[1]
end

-- heal is called before own is used. Any key may have been evicted, or deleted:
--
--   own alone   is made again of its copy, or the ids in it would never end
--   gen alone   has taken all ids with it: the lives in own are over
--   pods alone  has ended the pod's life, or its next one would have the ids
--
--   a copy that is another than own, or no copy: the lives in both are over
--   a registration that cannot be read is none
--
-- It returns true when readers have to know.
local function heal(pod)
  local copy, all = redis.call('HGET', gen, '@' .. pod), redis.call('HGETALL', own)
  local whole
  if #all > 0 then
    whole = compare(copy, all)
    held = whole and all
  else
    whole = restore(pod, copy)
  end
  born = whole or born
  if not registered(pod) then
    if not copy and #all == 0 then return false end
    retire(pod)
    return true
  end
  if whole then return false end
  finishAll(pod, copy)
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

-- lapse takes the predicted holders of a rank from own: those that are over, and but for
-- most of the others, those that end first. It returns true when there were some.
local function lapse(rank, most)
  local ends, all = {}, redis.call('HKEYS', own)
  for i = 1, #all do
    local r, till = string.match(all[i], '^(%d+)/predicted%-(%d+)$')
    if r == rank then ends[#ends + 1] = {tonumber(till), all[i]} end
  end
  table.sort(ends, function(a, b) return a[1] < b[1] end)
  local fields = {}
  for i = 1, #ends do
    if ends[i][1] <= now or #ends - i >= most then fields[#fields + 1] = ends[i][2] end
  end
  if #fields == 0 then return false end
  local ids = redis.call('HMGET', own, unpack(fields))
  redis.call('HDEL', own, unpack(fields))
  finish(ids)
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

-- gen has had the news since the first change. Without them it has been lost, and with
-- it what tells which pods there were.
if redis.call('HEXISTS', gen, '@') == 0 and redis.call('GET', epoch) then
  freeing()
  moved()
end
