-- A request leaves what it has a part in: who prefills when that has ended, all when it is over.
-- ARGV  1 after the time: 0 at the end, 1 for done, 2 for requests whose lease is over;
--       for done: cached tokens, negative if not known, quadratic, overhead, whether to learn
--       2... ids
-- Reply '' | of the last one the reservation as it was, if it runs
local what = #ARGV >= 2 and #ARGV[1] >= 16 and numbers('<d', ARGV[1], 9)
if not (#ARGV[1] == (what == 1 and 48 or 16) and (what == 0 or what == 1 or what == 2)) then error('arguments are wrong', 0) end
local cached, quadratic, overhead, learn = -1, 0, 0, 0
if what == 1 then cached, quadratic, overhead, learn = numbers('<dddd', ARGV[1], 17) end
if not (cached == cached and quadratic >= 0 and overhead >= 0) then error('numbers are wrong', 0) end
local reply = ''
for i = 2, #ARGV do
  local id = ARGV[i]
  local v = call('HGET', RES, id)
  local readable = v and #v >= 128
  local till, prefilled, output, outblocks, life, prefill, work, booked, tokens, tail, _, _, lease, length, pairLength, pairLife = 0
  if readable then
    till, prefilled, output, outblocks, life, prefill, work, booked, tokens, tail, _, _, lease, length, pairLength,
      pairLife = numbers('<dddddddddddddddd', v)
  end
  local from, to = 1, 0 -- the parts to leave: 1 is who decodes, or does all, 2 who prefills for it
  if what == 2 then
    if till > now then -- renewed
      call('ZREM', LEASE, id .. PAD) -- without memory a server lets all through behind what frees
      call('ZADD', LEASE, till, id .. PAD)
    else
      call('HDEL', RES, id)
      call('ZREM', LEASE, id .. PAD)
      if readable then to = 2 end
    end
  elseif till > now then
    if what == 0 then
      call('HDEL', RES, id)
      call('ZREM', LEASE, id .. PAD)
      to = 2
    else
      local renewed = pack('<ddddc0', now + lease, 1, output, outblocks, string.sub(v, 33))
      if type(redis.pcall('HSET', RES, id, renewed)) == 'table' then -- no memory: see above
        call('HDEL', RES, '')
        call('HSET', RES, id, renewed)
      end
      from = pairLength > 0 and 2 or 1
      if prefilled ~= 1 then to = from end
    end
    reply = v
  end
  if to == 2 and (pairLength == 0 or prefilled == 1) then to = 1 end -- nobody prefills
  for part = from, to do
    local name, leaves, blocks, its = string.sub(v, 129, 128 + length), what ~= 1 or part == 2, tail, life
    if part == 1 then blocks = tail + outblocks
    else name, its = string.sub(v, 129 + length, 128 + length + pairLength), pairLife end
    local row = call('HGET', LOAD, name)
    local g, l, k, w, p, b, n, since, speed, samples, learnt, filled, filledAt
    if row and #row == 104 then g, l, k, w, p, b, n, since, speed, samples, learnt, filled, filledAt = numbers('<ddddddddddddd', row) end
    if l ~= its then -- of a load that was lost the marks may be left
      if leaves and not row then call('UNLINK', MARKS .. name) end
    else
      if prefilled ~= 1 and (part == 2 or pairLength == 0) then
        w, p = max(0, w - work), max(0, p - prefill)
        if what == 1 then -- learn in shape.go
          local computed, before, ms = prefill, tokens - prefill, (now - max(booked, since)) / 1000 - overhead
          if cached >= 0 then before = math.min(cached, tokens); computed = tokens - before end
          if learn == 1 and computed >= 256 and ms >= 0.01 then
            local total = computed + before
            local units = work -- as was predicted, which may be less than that
            if cached >= 0 then units = floor(math.min(2 ^ 44, max(0, computed + quadratic * (total * total - before * before))) + 0.5) end
            local sample = units / ms
            if samples == 0 or speed <= 0 then
              speed, samples = sample, 1
            else
              local ratio = math.min(2, max(0.5, sample / speed))
              speed, samples = speed * ratio ^ max(0.1, 1 / (samples + 1)), samples + 1
            end
            speed, learnt = math.min(1e12, max(1e-6, speed)), now
          end
          since = now
        end
      end
      if leaves and n <= 1 then
        call('UNLINK', MARKS .. name)
        if samples == 0 and filled == 0 then call('HDEL', LOAD, name)
        else call('HSET', LOAD, name, pack('<ddddddddddddd', 0, l, 0, 0, 0, 0, 0, 0, speed, samples, learnt, filled, filledAt)) end
      else
        local m = (#v - 128 - length - pairLength) / 8
        if leaves and m > 0 then
          local marks = {numbers(string.sub(C8, 1, 2 * m), v, 129 + length + pairLength)}
          local have = call('HMGET', MARKS .. name, unpack(marks, 1, m))
          local ends, set, gone, k = {numbers(string.sub(D, 1, m + 1), ENDS)}, {}, {}, 1
          local less = {['1'] = '0', ['2'] = '1', ['3'] = '2', ['4'] = '3', ['5'] = '4'}
          for j = 1, m do
            local had = have[j]
            local left = less[had] or string.format('%d', max(0, (tonumber(had) or 0) - 1))
            if left == '0' then
              gone[#gone + 1], blocks = marks[j], blocks + ends[j] - (ends[j - 1] or 0)
            else
              set[k], set[k + 1], k = marks[j], left, k + 2
            end
          end
          if #gone > 0 then call('HDEL', MARKS .. name, unpack(gone)) end
          if #set > 0 then call('HSET', MARKS .. name, unpack(set)) end
        end
        if leaves then b, n = max(0, b - blocks), n - 1 end
        call('HSET', LOAD, name, pack('<ddddddddddddd', g, l, k, w, p, b, n, since, speed, samples, learnt, filled, filledAt))
      end
    end
  end
end
return reply
