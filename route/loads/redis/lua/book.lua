-- Choose who does a request, or who prefills it and who decodes it, and book it.
-- ARGV  1 after the time, of the call: lease in us, tokens, tail, expected, block size, temperature, draw,
--       most reservations, version of the settings, how many overdue ids are wanted where there are
--       too many reservations, weights of wait, prefill, decode, blocks and requests, quadratic,
--       whether the loads are wanted, how many may do it;
--       of who may do it, then of who may prefill for another: what each costs where nothing runs, then
--       of each: gen, uncached, work, base, floor, factor, speed, limits of requests, prefill and blocks,
--       what a unit is worth that a running request spares
--       2 id  3 marks, no two of them alike: it does not look  4... rank and pod of each
--       the last one, of a pair alone: the weights of who prefills, how many options and last resorts, and
--       of each: who prefills and who decodes, counted from 1, extra, factor
-- Reply ids, where reservations are overdue that are in the way | numbers, in a string:
--       1 now, lengths of two names, and the names: it runs already, there, prefilled there
--       2 too many reservations | 3 other settings
--       4 busy or 0 booked, now, who decodes or does it, costs, of a pair who prefills, costs, whether those of
--       the last resorts follow, totals; then the loads, if they are wanted
local told, id, marked = ARGV[1], ARGV[2], ARGV[3]
if not (#ARGV >= 4 and #told % 96 == 56) then error('arguments are wrong', 0) end
local lease, tokens, tail, expected, size, temperature, draw, most, version, overdue, weighWait, weighPrefill, weighDecode,
  weighBlocks, weighRequests, quadratic, wanted, n1 = numbers('<dddddddddddddddddd', told, 9)
local n, m = (#told - 152) / 96, #marked / 8
local paired = n > n1
if not (n1 >= 1 and n1 <= n and floor(n1) == n1 and n <= 128 and m <= 96 and floor(m) == m and #ARGV == (paired and 4 or 3) + n) then
  error('arguments are wrong', 0)
end
if not (quadratic >= 0 and quadratic <= 1 and lease > 0 and tokens >= 0 and tail >= 0 and expected >= 0 and size > 0 and max(lease, tokens, tail, expected, size) < 2 ^ 50) then
  error('numbers are wrong', 0)
end
local options, choices, resorts = paired and ARGV[4 + n], 0, 0
if paired then
  choices, resorts = numbers('<dd', options, 41)
  if #options ~= 56 + 32 * (choices + resorts) then error('options are wrong', 0) end
  for o = 57, #options, 32 do
    local p, d = numbers('<dd', options, o)
    if not (p >= 1 and p <= n - n1 and d >= 1 and d <= n1 and floor(p) == p and floor(d) == d) then error('options are wrong', 0) end
  end
end

local refused, rows, lost, costs, marks, ends
local works, fills, haves, none = {}, {}, {}, {} -- of those beside a twin: the work and the tokens that it leaves; of those looked at: their marks
local best, totals, count, resorted = 0, nil, n1, 0
if call('HLEN', RES) >= most then refused = 2
else
  rows = call('HMGET', LOAD, '@', unpack(ARGV, 4, 3 + n))
  if tonumber(rows[1] or 0) ~= version then
    lost = call('HGET', SETTINGS, 'version') or '0'
    if tonumber(lost) ~= version then refused = 3 end
  end
end
if not refused then
  costs = {numbers(string.sub(D, 1, n + 1), told, 153)}
  for c = 1, n do
    local row = rows[c + 1]
    if row and #row == 104 and numbers('<d', row, 49) > 0 then
      if c > n1 then weighWait, weighPrefill, weighDecode, weighBlocks, weighRequests = numbers('<ddddd', options) end
      local gen, uncached, units, base, least, factor, speed, mr, mp, mb, twin = numbers('<ddddddddddd', told, 8 * n + 88 * c + 65)
      local g, _, _, work, prefill, blocks, requests, since = numbers('<dddddddd', row)
      if g ~= 0 and g < gen then -- what ran there is over
      elseif (mr ~= 0 and requests >= mr) or (mp ~= 0 and prefill >= mp) or (mb ~= 0 and blocks >= mb) then
        costs[c] = 0 / 0
      else
        local wait = 0
        if speed > 0 and work > 0 then wait = max(0, work / speed - max(0, now - since) / 1000) end
        local counts, have = weighBlocks ~= 0 or weighDecode ~= 0, none
        if m > 0 and not marks then
          marks, ends = {numbers(string.sub(C8, 1, 2 * m), marked)}, {numbers(string.sub(D, 1, m + 1), ENDS)}
        end
        if counts and m > 0 then
          have = call('HMGET', MARKS .. ARGV[3 + c], unpack(marks, 1, m))
          haves[c] = have
        end
        if twin > 0 and uncached >= 256 then -- shared and beside in shape.go
          local j, held = 1, (tokens - uncached) / size
          while j <= m and ends[j] <= held do j = j + 1 end
          -- Most often there is no twin: one mark tells.
          if j <= m and not counts and call('HGET', MARKS .. ARGV[3 + c], marks[j]) then
            have = call('HMGET', MARKS .. ARGV[3 + c], unpack(marks, 1, m))
            haves[c] = have
          end
          while have[j] do j = j + 1 end
          local shared = math.min((ends[j - 1] or 0) * size, tokens - 1)
          if shared > tokens - uncached then
            local left = tokens - shared + quadratic * (tokens * tokens - shared * shared)
            left = math.min(units, floor(math.min(2 ^ 44, max(0, left)) + 0.5))
            base, works[c], fills[c] = base - twin * (units - left), left, tokens - shared
          end
        end
        if counts then
          blocks = blocks + tail
          for j = 1, m do
            if not have[j] then blocks = blocks + ends[j] - (ends[j - 1] or 0) end
          end
        end
        costs[c] = factor * (base + weighWait * wait + max(0, least + weighPrefill * prefill + weighDecode * blocks)
          + weighBlocks * blocks + weighRequests * requests)
      end
    end
  end

  -- Pick in shape.go. A cost that is not a number cannot be taken.
  totals = costs
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
  if best == 0 then refused = 4 end
end

local d, p = best, best -- who decodes, who prefills
if paired and best > 0 then
  p, d = numbers('<dd', options, 25 + 32 * (best + resorted * choices))
  p = n1 + p
  if ARGV[3 + p] == ARGV[3 + d] then d = p end
end
local lives, uncached, work = {0, 0}, 0, 0
if not refused then
  for part = 1, d == p and 1 or 2 do -- who does it or decodes, then who prefills for it
    local c = part == 1 and d or p
    local row, gen, tokens, units = rows[c + 1], numbers('<ddd', told, 8 * n + 88 * c + 65)
    if not (#ARGV[3 + c] >= 3 and gen >= 0 and tokens >= 0 and units >= 0 and max(gen, tokens, units) < 2 ^ 50) then error('a candidate is wrong', 0) end
    if c == p then uncached, work = tokens, works[c] or units end
    -- life, a time, tells a load from those that the rank had before.
    lives[part] = now
    if row and #row == 104 then
      local g, l = numbers('<dd', row)
      lives[part] = (numbers('<d', row, 49) > 0 and (g == 0 or g >= gen)) and l or max(now, l + 1)
    end
  end
end
local name, other = best > 0 and ARGV[3 + d] or '', d ~= p and ARGV[3 + p] or ''
local v = not refused and pack('<ddddddddddddddddc0c0c0', now + lease, 0, 0, 0, lives[1], uncached, work, now, tokens, tail, expected, size,
  lease, #name, #other, lives[2], name, other, marked)
-- Most ids are new: one call asks and writes. Where it may not write, as without memory, what runs can still be read.
-- Redis would make text of the score by "%.17g", which takes three times as long.
local score = string.format('%d%06d', (now + lease) / 1000000, (now + lease) % 1000000)
local added = not refused and redis.pcall('ZADD', LEASE, 'NX', score, id .. PAD)
if added ~= 1 then
  local old = call('HGET', RES, id)
  if old and #old >= 128 then
    if overdue > 0 and numbers('<d', old) <= now then return {id} end
    local length, pairLength = numbers('<dd', old, 105)
    return pack('<dddd', 1, now, length, pairLength) .. string.sub(old, 129, 128 + length + pairLength)
  end
  if type(added) == 'table' then return added end
  if refused == 2 and overdue > 0 then
    local ids = call('ZRANGE', LEASE, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', '0', string.format('%d', overdue))
    if #ids > 0 then return ids end
  end
  if refused == 2 or refused == 3 then return pack('<dd', refused, now) end
end

local reply = pack(string.sub(D, 1, n1 + 4), refused or 0, now, d, unpack(costs, 1, n1))
if paired then
  reply = reply .. pack(string.sub(D, 1, n - n1 + 2), p, unpack(costs, n1 + 1, n))
    .. pack('<d' .. string.rep('d', count), resorted, unpack(totals, 1, count))
end
if wanted == 1 then
  for c = 2, n + 1 do
    if not (rows[c] and #rows[c] == 104) then rows[c] = string.rep('\0', 104) end
  end
  reply = reply .. table.concat(rows, '', 2, n + 1)
end
if refused then return reply end

if lost then call('HSET', LOAD, '@', lost) end
call('HSET', RES, id, v)
for part = 1, d == p and 1 or 2 do
  local c = part == 1 and d or p
  local name, gen, newWork, newPrefill, fill = ARGV[3 + c], numbers('<d', told, 8 * n + 88 * c + 65), work, uncached, fills[c] or uncached
  if c ~= p then newWork, newPrefill, fill = 0, 0, 0 end
  local g, l, k, w, pre, b, r, since, speed, samples, learnt, filled, filledAt = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  local row = rows[c + 1]
  if row and #row == 104 then g, l, k, w, pre, b, r, since, speed, samples, learnt, filled, filledAt = numbers('<ddddddddddddd', row) end
  local fresh = r <= 0 or (g ~= 0 and g < gen)
  if fresh then
    -- One without requests has no marks; one that is void has some, and one that was lost may have.
    if r > 0 or l == 0 then call('UNLINK', MARKS .. name) end
    g, k, w, pre, b, r = 0, 0, 0, 0, 0, 0
  end
  b = b + tail
  if m > 0 then
    if not marks then marks = {numbers(string.sub(C8, 1, 2 * m), marked)} end
    local set, padded = {}, false
    if fresh then
      b = b + numbers('<d', ENDS, 8 * m - 7)
      for j = 1, m do set[2 * j - 1], set[2 * j] = marks[j], '1' end
    else
      local have, more = haves[c] or call('HMGET', MARKS .. name, unpack(marks, 1, m)), {['1'] = '2', ['2'] = '3', ['3'] = '4', ['4'] = '5'}
      for j = 1, m do
        local had = have[j]
        local new = had and (more[had] or string.format('%d', max(0, tonumber(had) or 0) + 1)) or '1'
        if new == '1' then b = b + ends[j] - (ends[j - 1] or 0) end
        set[2 * j - 1], set[2 * j] = marks[j], new
      end
      padded = have[1]
    end
    if not padded then set[2 * m + 1], set[2 * m + 2] = '', PAD end
    call('HSET', MARKS .. name, unpack(set))
  end
  if w == 0 then since = now end
  filled, filledAt = filled * 0.5 ^ (max(0, now - filledAt) / HALF) + fill, now -- FilledBy in loads.go
  call('HSET', LOAD, name, pack('<ddddddddddddd', max(g, gen), lives[part], k + 1, w + newWork, pre + newPrefill, b, r + 1, since, speed, samples, learnt, filled, filledAt))
end
return reply
