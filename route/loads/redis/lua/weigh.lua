-- What the scripts that book begin with, behind loads.lua.

-- weigh reads n candidates from ARGV[from] on, of each: rank and pod, gen, uncached, work, base, floor,
-- factor, prior, limits of requests, prefill and blocks. ARGV[weights] and the next four are the
-- weights of wait, prefill, decode, blocks and requests. It returns their costs, nil of one that is
-- busy, the same as texts, their loads and speeds as they were read, '' for none, and where in
-- ARGV each begins.
local function weigh(from, n, weights, marks, tail)
  local weighWait, weighPrefill, weighDecode = tonumber(ARGV[weights]), tonumber(ARGV[weights + 1]), tonumber(ARGV[weights + 2])
  local weighBlocks, weighRequests = tonumber(ARGV[weights + 3]), tonumber(ARGV[weights + 4])
  local names, at = {}, {}
  for c = 1, n do at[c] = from + 11 * (c - 1); names[c] = ARGV[at[c]] end
  local loads = redis.call('HMGET', LOAD, unpack(names))
  local speeds = redis.call('HMGET', SPEED, unpack(names))
  local costs, texts = {}, {}
  for c = 1, n do
    local a = at[c]
    local gen, base, floor = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
    local factor, prior = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
    local l = readLoad(loads[c])
    if l and l.gen ~= 0 and l.gen < gen then l = nil end
    if not l then loads[c] = '' end
    local work, prefill, blocks, requests, since = 0, 0, 0, 0, now
    if l then work, prefill, blocks, requests, since = l.work, l.prefill, l.blocks, l.requests, l.since end
    local mr, mp, mb = tonumber(ARGV[a + 8]), tonumber(ARGV[a + 9]), tonumber(ARGV[a + 10])
    if (mr ~= 0 and requests >= mr) or (mp ~= 0 and prefill >= mp) or (mb ~= 0 and blocks >= mb) then
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
    end
  end
  for c = 1, n do
    loads[c] = loads[c] or ''
    speeds[c] = speeds[c] or ''
  end
  return costs, texts, loads, speeds, at
end

-- pick is Pick of shape.go: 0 is none. A cost that is nil cannot be taken.
local function pick(costs, n, temperature, draw)
  local low, high, best = math.huge, -math.huge, 0
  for c = 1, n do
    local cost = costs[c]
    if cost then
      if cost < low then low, best = cost, c end
      if cost > high then high = cost end
    end
  end
  if temperature <= 0 or best == 0 then return best end
  local range, sum, last = high - low, 0, best
  local function weight(c)
    if range == 0 then return 1 end
    return math.exp(-(costs[c] - low) / range / temperature)
  end
  for c = 1, n do if costs[c] then sum = sum + weight(c) end end
  local rest = draw * sum
  for c = 1, n do
    if costs[c] then
      last = c
      rest = rest - weight(c)
      if rest < 0 then break end
    end
  end
  return last
end

-- addRequest adds a request to the load of a candidate that begins at ARGV[a], as weigh has read it,
-- and returns the life of the load.
local function addRequest(a, load, uncached, work, marks, tail)
  local name, l, gen = ARGV[a], readLoad(load), tonumber(ARGV[a + 1])
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
  return l.life
end
