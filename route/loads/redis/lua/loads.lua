-- What all scripts of loads begin with.
-- KEYS  load  reservations  leases  speeds  marks (the beginning of the marks' key names)  settings  engines  turns
-- ARGV  1 the time in microseconds of the Unix epoch, 0 for the server's own
local LOAD, RES, LEASE, SPEED, MARKS, SETTINGS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local ENGINES, TURNS = KEYS[7], KEYS[8]
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- A load: gen life booked work prefill blocks requests since
local function readLoad(v)
  if not v then return nil end
  local g, l, k, w, p, b, n, s = string.match(v, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not g then return nil end
  return {gen = g + 0, life = l + 0, booked = k + 0, work = w + 0, prefill = p + 0, blocks = b + 0, requests = n + 0, since = s + 0}
end

local function writeLoad(name, l)
  redis.call('HSET', LOAD, name, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    l.gen, l.life, l.booked, l.work, l.prefill, l.blocks, l.requests, l.since))
end

local function dropLoad(name)
  redis.call('HDEL', LOAD, name)
  redis.call('UNLINK', MARKS .. name)
end

-- A reservation: life state prefill work booked tokens tail output outblocks expected blocksize lease,
-- the length of the name, the name, and the marks, 8 bytes each. The state is 1 with a prefill that
-- has ended, else 0. Two more, 3 and 2, are those of a pair: another place prefills, and its life,
-- the length of its name and the name stand before the marks. Join with .., since string.format
-- ends a text at its first zero byte.
local function readReservation(v)
  if not v then return nil end
  local l, d, p, w, a, t, r, o, b, e, s, m, n, at = string.match(v,
    '^(%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
  if not l then return nil end
  local out = {life = l + 0, prefilled = d % 2 == 1, prefill = p + 0, work = w + 0, booked = a + 0, tokens = t + 0, tail = r + 0,
    output = o + 0, outblocks = b + 0, expected = e + 0, size = s + 0, lease = m + 0, name = string.sub(v, at, at + n - 1)}
  at = at + n
  if d + 0 >= 2 then
    local life, size, from = string.match(v, '^(%d+) (%d+) ()', at)
    if not life then return nil end
    out.pair = {life = life + 0, name = string.sub(v, from, from + size - 1)}
    at = from + size
  end
  out.marks = string.sub(v, at)
  return out
end

local function writeReservation(id, r)
  local state, pair = r.prefilled and 1 or 0, ''
  if r.pair then state, pair = state + 2, string.format('%.0f %d ', r.pair.life, #r.pair.name) .. r.pair.name end
  redis.call('HSET', RES, id, string.format('%.0f %d %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %d ',
    r.life, state, r.prefill, r.work, r.booked, r.tokens, r.tail, r.output, r.outblocks,
    r.expected, r.size, r.lease, #r.name) .. r.name .. pair .. r.marks)
end

local function readSpeed(v)
  local s, n, at = string.match(v or '', '^(%S+) (%d+) (%d+)$')
  return tonumber(s or 0) or 0, tonumber(n or 0), tonumber(at or 0)
end

-- What an engine says: put at gen running waiting tokens usage room progress, what was booked then (work prefill
-- blocks requests), gone lacks since.
local function readEngine(v)
  if not v then return nil end
  local f = {}
  for n in string.gmatch(v, '%S+') do f[#f + 1] = tonumber(n) end
  if #f ~= 16 then return nil end
  return {put = f[1], at = f[2], gen = f[3], running = f[4], waiting = f[5], tokens = f[6], usage = f[7], room = f[8],
    progress = f[9], work = f[10], prefill = f[11], blocks = f[12], requests = f[13], gone = f[14], lacks = f[15], since = f[16]}
end

local function writeEngine(name, e)
  redis.call('HSET', ENGINES, name, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    e.put, e.at, e.gen, e.running, e.waiting, e.tokens, e.usage, e.room, e.progress, e.work, e.prefill, e.blocks, e.requests,
    e.gone, e.lacks, e.since))
end

-- A turn: when it is due, and how often the engine has not answered.
local function readTurn(v)
  local due, missed = string.match(v or '', '^(%d+) (%d+)$')
  return tonumber(due or 0), tonumber(missed or 0)
end

local function split(packed)
  local f = {}
  for i = 1, #packed, 8 do f[#f + 1] = string.sub(packed, i, i + 7) end
  return f
end

-- counts returns how many requests have each mark of a load.
local function counts(name, marks)
  if #marks == 0 then return {} end
  local have = redis.call('HMGET', MARKS .. name, unpack(marks))
  for i = 1, #marks do have[i] = tonumber(have[i] or 0) or 0 end
  return have
end

-- missing returns how many blocks the marks stand for that nobody has: each for those
-- since the one before it. The places are those of nextMark in shape.go.
local function missing(have, n)
  local sum, before = 0, 0
  for i = 1, n do
    local at = before + math.max(1, math.floor(before / 4))
    if have[i] <= 0 then sum = sum + at - before end
    before = at
  end
  return sum
end

local function addMarks(name, marks)
  if #marks == 0 then return 0 end
  local have, set = counts(name, marks), {}
  local fresh = missing(have, #marks)
  for i = 1, #marks do set[2 * i - 1], set[2 * i] = marks[i], have[i] + 1 end
  redis.call('HSET', MARKS .. name, unpack(set))
  return fresh
end

local function dropMarks(name, marks)
  if #marks == 0 then return 0 end
  local have, set, gone = counts(name, marks), {}, {}
  for i = 1, #marks do
    have[i] = have[i] - 1
    if have[i] <= 0 then gone[#gone + 1] = marks[i]
    else set[#set + 1] = marks[i]; set[#set + 1] = have[i] end
  end
  if #gone > 0 then redis.call('HDEL', MARKS .. name, unpack(gone)) end
  if #set > 0 then redis.call('HSET', MARKS .. name, unpack(set)) end
  return missing(have, #marks)
end

-- liveLoad returns the load that a reservation, or the prefill of a pair, is part of, nil when
-- that is over.
local function liveLoad(r)
  local l = readLoad(redis.call('HGET', LOAD, r.name))
  if l and l.life == r.life then return l end
end

-- leave takes one request off the load that it is part of.
local function leave(at, marks, work, prefill, blocks)
  local l = liveLoad(at)
  if not l then -- of a load that was lost the marks may be left
    if redis.call('HEXISTS', LOAD, at.name) == 0 then redis.call('UNLINK', MARKS .. at.name) end
    return
  end
  l.requests = l.requests - 1
  if l.requests <= 0 then return dropLoad(at.name) end
  l.work, l.prefill = math.max(0, l.work - work), math.max(0, l.prefill - prefill)
  l.blocks = math.max(0, l.blocks - dropMarks(at.name, split(marks)) - blocks)
  writeLoad(at.name, l)
end

local function finish(id, r)
  redis.call('HDEL', RES, id)
  redis.call('ZREM', LEASE, id)
  if not r then return end
  local work, prefill = r.work, r.prefill
  if r.prefilled then work, prefill = 0, 0 end
  if not r.pair then return leave(r, r.marks, work, prefill, r.tail + r.outblocks) end
  leave(r, r.marks, 0, 0, r.tail + r.outblocks)
  if not r.prefilled then leave(r.pair, r.marks, work, prefill, r.tail) end
end

-- endOverdue ends reservations whose lease is over, and returns how many.
local function endOverdue(most)
  local ids = redis.call('ZRANGEBYSCORE', LEASE, '-inf', now, 'LIMIT', 0, most)
  for i = 1, #ids do finish(ids[i], readReservation(redis.call('HGET', RES, ids[i]))) end
  return #ids
end

-- find returns the reservation of a request that runs.
local function find(id)
  endOverdue(8)
  local untilWhen = redis.call('ZSCORE', LEASE, id)
  if not untilWhen or tonumber(untilWhen) <= now then return nil end
  return readReservation(redis.call('HGET', RES, id))
end

local function renew(id, r) redis.call('ZADD', LEASE, string.format('%.0f', now + r.lease), id) end

-- report says that a request of which a report came runs at a place.
local function report(r, at, first) return {at.name, r.tokens - r.prefill, r.tokens, first and 1 or 0} end
