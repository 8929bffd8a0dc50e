-- Choose who does a request, or who prefills it and who decodes it, and book it.
-- ARGV  2 id  3 of the call: lease in us, tokens, tail, expected, block size, temperature, draw, most
--       reservations, version of the settings, how many overdue ids are wanted where there are
--       too many reservations, weights of wait, prefill, decode, blocks and requests, quadratic,
--       whether the loads are wanted  4 marks, no two of them alike: it does not look
--       5 of each who may do it: gen, uncached, work, base, floor, factor, speed, limits of requests,
--       prefill and blocks, what a unit is worth that a running request spares  6 the same of each who may prefill for another; '' for no pair
--       7 of a pair: the weights of who prefills, how many options and last resorts, and of each: who
--       prefills and who decodes, counted from 1, extra, factor; '' for no pair
--       8... rank and pod of those of 5 and of 6
-- Reply {'overdue', ids} | {'again', now, name, name of who prefills} | {'full' | 'settings', now} |
--       {'busy' | 'booked', now, name, costs, loads} and, of a pair, name of who prefills, costs, loads,
--       totals, whether they are those of the last resorts
local id, marked, candidates, options = ARGV[2], ARGV[4], ARGV[5] .. ARGV[6], ARGV[7]
local n, n1 = #candidates / 88, #ARGV[5] / 88
local paired = n > n1
if not (n1 > 0 and #ARGV[3] == 136 and #marked % 8 == 0 and #ARGV[5] % 88 == 0 and #ARGV == 7 + n and paired == (#options > 0)) then
  error('arguments are wrong', 0)
end
local lease, tokens, tail, expected, size, temperature, draw, most, version, overdue, weighWait, weighPrefill, weighDecode,
  weighBlocks, weighRequests, quadratic, wanted = numbers('<ddddddddddddddddd', ARGV[3])
if not (quadratic >= 0 and quadratic <= 1 and lease > 0 and tokens >= 0 and tail >= 0 and expected >= 0 and size > 0 and max(lease, tokens, tail, expected, size) < 2 ^ 50) then
  error('numbers are wrong', 0)
end
local choices, resorts = 0, 0
if paired then
  choices, resorts = numbers('<dd', options, 41)
  if #options ~= 56 + 32 * (choices + resorts) then error('options are wrong', 0) end
  for o = 57, #options, 32 do
    local p, d = numbers('<dd', options, o)
    if not (p >= 1 and p <= n - n1 and d >= 1 and d <= n1 and floor(p) == p and floor(d) == d) then error('options are wrong', 0) end
  end
end
local stamp, NONE = pack('<d', now), '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local old = call('HGET', RES, id)
if old and #old >= 128 then
  if overdue > 0 and numbers('<d', old) <= now then return {'overdue', {id}} end
  local length, pairLength = numbers('<dd', old, 105)
  local name = string.sub(old, 129, 128 + length)
  return {'again', stamp, name, pairLength > 0 and string.sub(old, 129 + length, 128 + length + pairLength) or name}
end
if call('HLEN', RES) >= most then
  local ids = {}
  if overdue > 0 then ids = call('ZRANGE', LEASE, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', '0', string.format('%d', overdue)) end
  if #ids > 0 then return {'overdue', ids} end
  return {'full', stamp}
end
local rows, lost = call('HMGET', LOAD, '@', unpack(ARGV, 8)), nil
if tonumber(rows[1] or 0) ~= version then
  lost = call('HGET', SETTINGS, 'version') or '0'
  if tonumber(lost) ~= version then return {'settings', stamp} end
end

local m = #marked / 8
local marks = {numbers(string.rep('c8', m), marked)}
local costs, works, fills, haves = {}, {}, {}, {} -- of each: the work and the tokens that running requests leave, their marks
for c = 1, n do
  if c > n1 then weighWait, weighPrefill, weighDecode, weighBlocks, weighRequests = numbers('<ddddd', options) end
  local gen, uncached, units, base, least, factor, speed, mr, mp, mb, twin = numbers('<ddddddddddd', candidates, 88 * c - 87)
  if not (#ARGV[7 + c] >= 3 and gen >= 0 and uncached >= 0 and units >= 0 and max(gen, uncached, units) < 2 ^ 50) then error('a candidate is wrong', 0) end
  works[c], fills[c] = units, uncached
  local row, work, prefill, blocks, requests, since = rows[c + 1], 0, 0, 0, 0, now
  if row and #row == 104 then
    local g, _, _, w, p, b, r, s = numbers('<dddddddd', row)
    if r > 0 and (g == 0 or g >= gen) then work, prefill, blocks, requests, since = w, p, b, r, s end
  else rows[c + 1] = NONE end
  if (mr ~= 0 and requests >= mr) or (mp ~= 0 and prefill >= mp) or (mb ~= 0 and blocks >= mb) then
    costs[c] = 0 / 0
  else
    local wait = 0
    if speed > 0 and work > 0 then wait = max(0, work / speed - max(0, now - since) / 1000) end
    local counts, have, name = weighBlocks ~= 0 or weighDecode ~= 0, {}, MARKS .. ARGV[7 + c]
    if counts and m > 0 and requests > 0 then
      have = call('HMGET', name, unpack(marks, 1, m))
      haves[c] = have
    end
    if twin > 0 and uncached >= 256 and requests > 0 then -- shared and beside in shape.go
      local j, at = 1, 4
      while j <= m and at * size <= tokens - uncached do
        j, at = j + 1, at + max(4, floor(at / 4))
      end
      -- Most often there is no twin: one mark tells.
      if j <= m and not counts and call('HGET', name, marks[j]) then
        have = call('HMGET', name, unpack(marks, 1, m))
        haves[c] = have
      end
      local shared = 0
      while j <= m and have[j] do
        shared, j, at = at, j + 1, at + max(4, floor(at / 4))
      end
      shared = math.min(shared * size, tokens - 1)
      if shared > tokens - uncached then
        local left = tokens - shared + quadratic * (tokens * tokens - shared * shared)
        left = math.min(units, floor(math.min(2 ^ 44, max(0, left)) + 0.5))
        base, works[c], fills[c] = base - twin * (units - left), left, tokens - shared
      end
    end
    if counts then
      blocks = blocks + tail
      local at = 0
      for j = 1, m do
        local next = at + max(4, floor(at / 4))
        if not have[j] then blocks = blocks + next - at end
        at = next
      end
    end
    costs[c] = factor * (base + weighWait * wait + max(0, least + weighPrefill * prefill + weighDecode * blocks)
      + weighBlocks * blocks + weighRequests * requests)
  end
end

if lost then call('HSET', LOAD, '@', lost) end

-- Pick in shape.go. A cost that is not a number cannot be taken.
local best, totals, count, resorted = 0, costs, n1, 0
for try = 0, resorts > 0 and 1 or 0 do
  if paired then
    totals, count, resorted = {}, try == 0 and choices or resorts, try
    for o = 1, count do
      local p, d, extra, factor = numbers('<dddd', options, 25 + 32 * (o + try * choices))
      totals[o] = factor * (costs[n1 + p] + costs[d] + extra)
    end
  end
  local low, high = math.huge, -math.huge
  for c = 1, count do
    local cost = totals[c]
    if cost < low then low, best = cost, c end
    if cost > high then high = cost end
  end
  if temperature > 0 and best > 0 then
    local weights, sum = {}, 0
    for c = 1, count do
      if totals[c] == totals[c] then
        weights[c] = high == low and 1 or math.exp(-(totals[c] - low) / (high - low) / temperature)
        sum = sum + weights[c]
      end
    end
    local rest = draw * sum
    for c = 1, count do
      if weights[c] then
        best = c
        rest = rest - weights[c]
        if rest < 0 then break end
      end
    end
  end
  if best > 0 then break end
end

local d, p = best, best -- who decodes, who prefills
if paired and best > 0 then
  p, d = numbers('<dd', options, 25 + 32 * (best + resorted * choices))
  p = n1 + p
  if ARGV[7 + p] == ARGV[7 + d] then d = p end
end
local reply = {best > 0 and 'booked' or 'busy', stamp, ARGV[7 + d], pack('<' .. string.rep('d', n1), unpack(costs)),
  wanted == 1 and table.concat(rows, '', 2, 1 + n1) or ''}
if best == 0 then reply[3] = '' end
if paired then
  reply[6], reply[7] = best > 0 and ARGV[7 + p] or '', pack('<' .. string.rep('d', n - n1), unpack(costs, n1 + 1))
  reply[8] = wanted == 1 and table.concat(rows, '', n1 + 2, n + 1) or ''
  reply[9], reply[10] = pack('<' .. string.rep('d', count), unpack(totals, 1, count)), resorted
end
if best == 0 then return reply end

local _, uncached = numbers('<dd', candidates, 88 * p - 87)
local work = works[p]
local lives = {}
for part = 1, d == p and 1 or 2 do -- who does it or decodes, then who prefills for it
  local c = part == 1 and d or p
  local name, gen, newWork, newPrefill, fill = ARGV[7 + c], numbers('<d', candidates, 88 * c - 87), work, uncached, fills[p]
  if c ~= p then newWork, newPrefill, fill = 0, 0, 0 end
  local g, l, k, w, pre, b, r, since, speed, samples, learnt, filled, filledAt = numbers('<ddddddddddddd', rows[c + 1])
  -- life, a time, tells a load from those that the rank had before.
  local fresh = r <= 0 or (g ~= 0 and g < gen)
  if fresh then
    g, l, k, w, pre, b, r = 0, max(now, l + 1), 0, 0, 0, 0, 0
    call('UNLINK', MARKS .. name)
  end
  lives[part] = l
  b = b + tail
  if m > 0 then
    local have, set, at = {}, {}, 0
    if not fresh then have = haves[c] or call('HMGET', MARKS .. name, unpack(marks, 1, m)) end
    for j = 1, m do
      local next, had = at + max(4, floor(at / 4)), tonumber(have[j] or 0) or 0
      set[2 * j - 1] = marks[j]
      if had <= 0 then
        set[2 * j], b = '1', b + next - at
      else
        set[2 * j] = string.format('%d', had + 1)
      end
      at = next
    end
    if not have[1] then set[2 * m + 1], set[2 * m + 2] = '', PAD end
    call('HSET', MARKS .. name, unpack(set))
  end
  if w == 0 then since = now end
  filled, filledAt = filled * 0.5 ^ (max(0, now - filledAt) / HALF) + fill, now -- FilledBy in loads.go
  call('HSET', LOAD, name, pack('<ddddddddddddd', max(g, gen), l, k + 1, w + newWork, pre + newPrefill, b, r + 1, since, speed, samples, learnt, filled, filledAt))
end
local name, other = ARGV[7 + d], d == p and '' or ARGV[7 + p]
call('HSET', RES, id, pack('<ddddddddddddddddc0c0c0', now + lease, 0, 0, 0, lives[1], uncached, work, now, tokens, tail, expected, size,
  lease, #name, #other, lives[2] or 0, name, other, marked))
call('ZADD', LEASE, string.format('%.0f', now + lease), id .. PAD)
return reply
