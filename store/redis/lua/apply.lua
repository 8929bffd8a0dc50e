-- Changes the holders of blocks, and the maps of generations.
--
-- KEYS  [live own...] [records] map... block... [logged log]
-- ARGV  pods guards maps
--       then for each pod: fields, then so many times: field id
--       then for each guard: generation fence seq after again attempt part parts
--       then for each map: generation sets dels
--       then for each group of blocks: ops blocks
--
-- Behind pods, after a space, there may be a latest time, in ms of this server's TIME.
-- Later nothing is done, and the answer is KVALATE with the time. A writer without
-- guards gives one. Nothing else keeps a call that was held up on its way from undoing
-- what others have written since its writer gave it up.
--
-- The first part says what the writer believes: these fields of the pods' own
-- hashes have these ids, "" for none. With 0 pods there is nothing to check and
-- no key of theirs.
--
-- The second part is under which guards the blocks are written: see judge. A
-- sequence that takes several runs goes in parts, numbered from 0; each is taken
-- only after the one before it of the same attempt. With 0 parts the guard is
-- looked at and nothing written down. With 0 guards there is no key of records.
--
-- Of a map, sets and dels are rows of changes of entries, "" for none, which go behind
-- the list that its key is. The rows of dels only delete. A list that is not there, or
-- is none, has been lost, and so has the map: LOST. Who writes maps is to keep the list
-- short: see compact.lua.
--
-- The groups take the blocks in order, and the ops are those of each block of the
-- group. The op "+17" adds holder 17, "-17" removes it, and "+17-18" does both.
-- The op "=text" deletes a value that is exactly this text. With more than one
-- guard each stands before its ops: "@5+17@9-18" adds 17 under the guard of
-- generation 5.
--
-- The last two keys stand behind blocks only. If the log is on, which logged says by
-- being there, the new values of blocks that change are added to it: see log.lua.
-- Who leaves the keys out writes past the replicas.
--
-- Returns the bytes of the values that have been looked at, so that the writer
-- can keep its next runs short. With guards it is an array of that and what judge
-- says to each, or GAP where a part before this one is missing. Nothing is done
-- under a guard unless it is APPLIED. When nothing at all is done: OUTDATED, the ids
-- are not what the writer believes, or LATE.

local at = 4
local first = 1
local owners, latest = string.match(ARGV[1], '^(%d+) ?(%d*)$')
owners = tonumber(owners)
if latest ~= '' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if now >= tonumber(latest) then return redis.error_reply('KVALATE ' .. string.format('%.0f', now)) end
end
if owners > 0 then
  for p = 1, owners do
    local fields, want = {}, {}
    for f = 1, tonumber(ARGV[at]) do
      fields[f], want[f] = ARGV[at + 2 * f - 1], ARGV[at + 2 * f]
    end
    at = at + 1 + 2 * #fields
    local have = #fields > 0 and redis.call('HMGET', KEYS[1 + p], unpack(fields))
    for f = 1, #fields do
      if (have[f] or '') ~= want[f] then return OUTDATED end
    end
  end
  local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if next[2] then
    local now = redis.call('TIME')
    if tonumber(next[2]) <= now[1] * 1000 + now[2] / 1000 then return LATE end
  end
  first = owners + 2
end

local guards = tonumber(ARGV[2])
local records
local verdicts, written, skip, lives = {0}, {}, {}, {}
local idle = guards > 0
if guards > 0 then
  records = KEYS[first]
  first = first + 1
  for g = 1, guards do lives[g] = ARGV[at + 8 * (g - 1)] end
  local have = redis.call('HMGET', records, unpack(lives))
  for g = 1, guards do
    local life, fence, seq, after, again, attempt, part, parts = unpack(ARGV, at, at + 7)
    at = at + 8
    local verdict, s, next, tried, count = judge(have[g], fence, seq, after, again)
    if verdict == APPLIED and parts ~= '0' then
      local n = tonumber(part) + 1
      if n > 1 and (next ~= seq or tried ~= attempt or count ~= part) then
        verdict = GAP
      else
        written[#written + 1] = life
        written[#written + 1] = fence .. ',' .. (n == tonumber(parts) and seq or table.concat({s, seq, attempt, n}, ','))
      end
    end
    verdicts[1 + g] = verdict
    if verdict == APPLIED then idle = false else skip[life] = true end
  end
end
local maps, lost = {}, {}
for m = 1, tonumber(ARGV[3]) do
  local life = ARGV[at]
  if not skip[life] then
    local length = redis.pcall('LLEN', KEYS[first])
    if type(length) == 'number' and length > 0 then
      maps[#maps + 1] = {KEYS[first], ARGV[at + 1], ARGV[at + 2]}
    else
      lost[life] = true
    end
  end
  at = at + 3
  first = first + 1
end
if next(lost) then
  local kept = {}
  for i = 1, #written, 2 do
    if not lost[written[i]] then
      kept[#kept + 1] = written[i]
      kept[#kept + 1] = written[i + 1]
    end
  end
  written, idle = kept, true
  for g = 1, guards do
    if lost[lives[g]] then
      verdicts[1 + g] = LOST
      skip[lives[g]] = true
    end
    if verdicts[1 + g] == APPLIED then idle = false end
  end
end

local find, match, sub = string.find, string.match, string.sub

-- A server that is full refuses (OOM) the first write of a script if it may take
-- memory, and only the first. So what takes memory goes first here. When it is
-- refused, what frees some is done all the same. Then the refusal is returned,
-- with nothing in the records: the writer makes the batch again, when there is
-- room. Func grow makes such a write. It returns an error that is another.
local refusal
local function grow(...)
  if refusal then return nil end
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if not find(reply.err, 'OOM', 1, true) then return reply end
  refusal = redis.error_reply("OOM command not allowed when used memory > 'maxmemory'.")
  return nil
end

-- note writes the records. A call that only frees, or changes nothing, has to
-- on a full server, too.
local function note()
  if #written == 0 then return end
  local reply = redis.pcall('HSET', records, unpack(written))
  if type(reply) == 'table' and reply.err then
    redis.call('HDEL', records, '')
    redis.call('HSET', records, unpack(written))
  end
end

for _, m in ipairs(maps) do
  local wrong = m[2] ~= '' and grow('RPUSH', m[1], m[2])
  if wrong then return wrong end
end
-- shrink deletes entries of maps. What says so takes memory itself, which has to be
-- there on a full server too, or nothing could be taken from the map. But it must not
-- be taken again and again, for a batch that is refused and will be back.
local function shrink()
  for _, m in ipairs(maps) do
    if m[3] ~= '' and not refusal then
      local reply = redis.pcall('RPUSH', m[1], m[3])
      if type(reply) == 'table' and reply.err then
        redis.call('HDEL', records, '')
        redis.call('RPUSH', m[1], m[3])
      end
    end
  end
end

if idle or first > #KEYS then
  shrink()
  if refusal then return refusal end
  note()
  return guards > 0 and verdicts or 0
end

-- wellformed is what a value must look like to be read as ids. That they ascend
-- is the writers' business and that they fit 32 bits the readers'. Of a long
-- value, which is hardly there by accident, only the ends are looked at.
local function wellformed(v)
  if #v > 64 then return find(v, '^[1-9]%d*,') and find(v, ',%d+$', -12) end
  return find(v, '^[1-9][%d,]*$') and not find(v, ',[,0]') and not find(v, '^,', -1)
end

-- number returns the id that begins at a place in v, 0 for none.
local function number(v, at) return tonumber(match(v, '^%d+', at) or '0') end

-- place returns where in v the first id above n begins, nil if there is none.
local function place(v, n)
  if number(v, 1) > n then return 1 end
  -- An id that is not above n begins at from. Each step brings from and to
  -- nearer to each other; what is left is searched from from on.
  local from, to = 1, #v
  while to - from > 32 do
    local half = math.floor((from + to) / 2)
    local comma = find(v, ',', half, true)
    if not comma or comma + 1 >= to then
      to = half
    elseif number(v, comma + 1) > n then
      to = comma + 1
    else
      from = comma + 1
    end
  end
  while true do
    local comma = find(v, ',', from, true)
    if not comma then return nil end
    from = comma + 1
    if number(v, from) > n then return from end
  end
end

-- add returns the value v with the id in it, which is the id alone where v was
-- a text or garbled.
local function add(v, id)
  if not v or not wellformed(v) then return id end
  local n = tonumber(id)
  if tonumber(match(v, '%d+$', -11)) < n then return v .. ',' .. id end
  if find(',' .. v .. ',', ',' .. id .. ',', 1, true) then return v end
  local at = place(v, n)
  if not at then return id end
  return sub(v, 1, at - 1) .. id .. ',' .. sub(v, at)
end

-- remove returns the value v without the id, false when none is left. A text,
-- which has more than digits and commas, is none of ours.
local function remove(v, id)
  if not v or v == id then return false end
  if not wellformed(v) then return find(v, '[^%d,]') and v end
  local padded = ',' .. v .. ','
  local from = find(padded, ',' .. id .. ',', 1, true)
  if not from then return v end
  return sub(sub(padded, 1, from) .. sub(padded, from + #id + 2), 2, -2)
end

-- folder returns the function that makes a block's new value of its old one,
-- false being none in both.
local function folder(ops)
  local sign, id = match(ops, '^([+-])(%d+)$')
  if sign == '+' then return function(v) return add(v, id) end end
  if sign == '-' then return function(v) return remove(v, id) end end
  local exact = match(ops, '^=(.*)$')
  if exact then return function(v) return v ~= exact and v end end
  return function(v)
    for s, i in string.gmatch(ops, '([+-])(%d+)') do
      if s == '+' then v = add(v, i) else v = remove(v, i) end
    end
    return v
  end
end

-- under returns the ops without those of guards that refuse.
local function under(ops)
  if not find(ops, '^@') then return ops end
  return (string.gsub(ops, '@(%d+)([^@]*)', function(life, those) return skip[life] and '' or those end))
end

local old = redis.call('MGET', unpack(KEYS, first))
local set, less, del = {}, {}, {} -- less: values that have become shorter
local block, bytes, sets = 0, 0, 0
while ARGV[at] do
  local ops = ARGV[at]
  if guards > 1 then ops = under(ops) end
  local fold, blocks = folder(ops), tonumber(ARGV[at + 1])
  at = at + 2
  -- Blocks of one chain are held by the same holders, so that few values differ.
  local folded = {}
  for i = block + 1, block + blocks do
    local v = old[i]
    local new = folded[v]
    if new == nil then
      new = fold(v)
      folded[v] = new
    end
    if v then bytes = bytes + #v end
    if new ~= v then
      if new and v and #new < #v then
        less[#less + 1] = KEYS[first + i - 1]
        less[#less + 1] = new
      elseif new then
        set[sets + 1] = KEYS[first + i - 1]
        set[sets + 2] = new
        sets = sets + 2
      else
        del[#del + 1] = KEYS[first + i - 1]
      end
    end
  end
  block = block + blocks
end

if #set > 0 then
  local wrong = grow('MSET', unpack(set))
  if wrong then return wrong end
end
shrink()
if #del > 0 then redis.call('UNLINK', unpack(del)) end
if #less > 0 then
  local reply = redis.pcall('MSET', unpack(less))
  if type(reply) == 'table' and reply.err then
    redis.call('UNLINK', less[1]) -- the way is open
    redis.call('MSET', unpack(less))
  end
end

-- What has been done to blocks goes to the log, if that is on.
local logged, log = KEYS[first + block], KEYS[first + block + 1]
local limit, n = match(log and old[block + 1] or '', '^(%d+) (%d+)$')
if refusal then set = {} end
if limit and #set + #less + #del > 0 then
  local values, names = {}, {}
  local function tell(key, v)
    local list = names[v]
    if not list then
      list = {}
      names[v] = list
      values[#values + 1] = v
    end
    list[#list + 1] = sub(key, -8)
  end
  for i = 1, #set, 2 do tell(set[i], set[i + 1]) end
  for i = 1, #less, 2 do tell(less[i], less[i + 1]) end
  for i = 1, #del do tell(del[i], '') end
  n = string.format('%.0f', n + 1)
  local entry = {log, 'MAXLEN', '~', limit, '*', 'n', n}
  for _, v in ipairs(values) do
    entry[#entry + 1] = '=' .. v
    entry[#entry + 1] = table.concat(names[v])
  end
  local reply = redis.pcall('XADD', unpack(entry))
  if type(reply) == 'table' and reply.err then
    redis.call('UNLINK', logged) -- off, as readers see: it is no stream
  else
    redis.call('SET', logged, limit .. ' ' .. n)
  end
end
if refusal then return refusal end
if guards == 0 then return bytes end
note()
verdicts[1] = bytes
return verdicts
