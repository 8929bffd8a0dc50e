-- Choose among candidates and book.
-- ARGV  2 id  3 lease in us  4 tokens  5 tail  6 marks  7 expected  8 block size
--       9-13 weights of wait, prefill, decode, blocks, requests  14 temperature  15 draw  16 most reservations
--       17 version of the settings
--       then of each candidate: rank and pod, gen, uncached, work, base, floor, factor, prior, limits of
--       requests, prefill and blocks
-- Reply {'again', now, name} | {'full', now} | {'settings', now} | {'busy' | 'booked', now, name, costs, loads, speeds}
local id, tail, marks = ARGV[2], tonumber(ARGV[5]), split(ARGV[6])
endOverdue(8)
local old = readReservation(redis.call('HGET', RES, id))
if old then return {'again', string.format('%.0f', now), old.name} end
if redis.call('HLEN', RES) >= tonumber(ARGV[16]) then return {'full', string.format('%.0f', now)} end

if (redis.call('HGET', SETTINGS, 'version') or '0') ~= ARGV[17] then return {'settings', string.format('%.0f', now)} end

local weighWait, weighPrefill, weighDecode = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local weighBlocks, weighRequests = tonumber(ARGV[12]), tonumber(ARGV[13])
local names, n = {}, (#ARGV - 17) / 11
for c = 1, n do names[c] = ARGV[7 + 11 * c] end
local loads = redis.call('HMGET', LOAD, unpack(names))
local speeds = redis.call('HMGET', SPEED, unpack(names))
local costs, texts, low, high, best = {}, {}, math.huge, -math.huge, 0
for c = 1, n do
  local a = 7 + 11 * c
  local gen, base, floor = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local factor, prior = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  local l = readLoad(loads[c])
  if l and l.gen ~= 0 and l.gen < gen then l = nil end
  if not l then loads[c] = '' end
  local work, prefill, blocks, requests, since = 0, 0, 0, 0, now
  if l then work, prefill, blocks, requests, since = l.work, l.prefill, l.blocks, l.requests, l.since end
  local mr, mp, mb = tonumber(ARGV[a + 8]), tonumber(ARGV[a + 9]), tonumber(ARGV[a + 10])
  if (mr > 0 and requests >= mr) or (mp > 0 and prefill >= mp) or (mb > 0 and blocks >= mb) then
    texts[c] = 'nan'
  else
    local speed = readSpeed(speeds[c])
    if speed <= 0 then speed = prior end
    local wait = 0
    if speed > 0 and work > 0 then wait = math.max(0, work / speed - math.max(0, now - since) / 1000) end
    local added = 0
    if weighBlocks ~= 0 or weighDecode ~= 0 then
      if l then added = tail + missing(counts(names[c], marks), #marks)
      else
        local none = {}
        for i = 1, #marks do none[i] = 0 end
        added = tail + missing(none, #marks)
      end
    end
    local cost = factor * (base + weighWait * wait + math.max(0, floor + weighPrefill * prefill + weighDecode * (blocks + added))
      + weighBlocks * (blocks + added) + weighRequests * requests)
    costs[c], texts[c] = cost, string.format('%.17g', cost)
    if cost < low then low, best = cost, c end
    if cost > high then high = cost end
  end
end
for c = 1, n do
  loads[c] = loads[c] or ''
  speeds[c] = speeds[c] or ''
end
if best == 0 then return {'busy', string.format('%.0f', now), '', texts, loads, speeds} end

local temperature = tonumber(ARGV[14])
if temperature > 0 then -- Pick in shape.go
  local range, sum, last = high - low, 0, best
  local function weight(c)
    if range == 0 then return 1 end
    return math.exp(-(costs[c] - low) / range / temperature)
  end
  for c = 1, n do if costs[c] then sum = sum + weight(c) end end
  local rest = tonumber(ARGV[15]) * sum
  for c = 1, n do
    if costs[c] then
      last = c
      rest = rest - weight(c)
      if rest < 0 then break end
    end
  end
  best = last
end

local a, name = 7 + 11 * best, names[best]
local l, gen, uncached, work = readLoad(loads[best]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
if not l then
  -- A row that is void or cannot be read goes; life, a time, tells the next one from it.
  local before = readLoad(redis.call('HGET', LOAD, name))
  dropLoad(name)
  l = {gen = 0, life = math.max(now, before and before.life + 1 or 0), booked = 0, work = 0, prefill = 0, blocks = 0, requests = 0, since = now}
end
if l.work == 0 then l.since = now end
l.gen = math.max(l.gen, gen)
l.booked, l.work, l.prefill, l.requests = l.booked + 1, l.work + work, l.prefill + uncached, l.requests + 1
l.blocks = l.blocks + addMarks(name, marks) + tail
writeLoad(name, l)
local r = {life = l.life, prefilled = false, prefill = uncached, work = work, booked = now, tokens = tonumber(ARGV[4]), tail = tail,
  output = 0, outblocks = 0, expected = tonumber(ARGV[7]), size = tonumber(ARGV[8]), lease = tonumber(ARGV[3]), name = name, marks = ARGV[6]}
writeReservation(id, r)
renew(id, r)
return {'booked', string.format('%.0f', now), name, texts, loads, speeds}
