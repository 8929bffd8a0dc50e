-- Compare a load with the reservations that are part of it, and set right what differs.
-- ARGV  2 name  3 life  4 booked: how many had been booked when the ids were read  5... ids
-- Reply {'same'} | {'moved'}: the ids are not all that there are | {'mended', before, after}
local name, life, booked = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not (#ARGV >= 4 and life and booked) then error('arguments are wrong', 0) end
local held = {}
for i = 5, #ARGV do
  local v = call('HGET', RES, ARGV[i])
  if v and #v >= 128 then
    held[#held + 1] = v
    if not call('ZSCORE', LEASE, ARGV[i] .. PAD) then -- without one it would never end
      call('ZADD', LEASE, string.format('%.0f', (numbers('<d', v))), ARGV[i] .. PAD)
    end
  end
end
local before = call('HGET', LOAD, name)
if not before or #before ~= 104 then return {'same'} end
local g, l, k, w, p, b, n, since, speed, samples, learnt, filled, filledAt = numbers('<ddddddddddddd', before)
if l ~= life or k ~= booked then return {'moved'} end
local work, prefill, blocks, requests, marks = 0, 0, 0, 0, {}
for _, v in ipairs(held) do
  local _, prefilled, _, outblocks, itsLife, itsPrefill, itsWork, _, _, tail, _, _, _, length, pairLength, pairLife = numbers('<dddddddddddddddd', v)
  local decodes = itsLife == l and string.sub(v, 129, 128 + length) == name
  local prefills = prefilled ~= 1 and decodes
  if pairLength > 0 then
    prefills = prefilled ~= 1 and pairLife == l and string.sub(v, 129 + length, 128 + length + pairLength) == name
  end
  if prefills then work, prefill = work + itsWork, prefill + itsPrefill end
  if decodes or prefills then
    requests, blocks = requests + 1, blocks + tail + (decodes and outblocks or 0)
    local at, place = 0, 129 + length + pairLength
    for j = 1, math.min(#ENDS, #v + 1 - place) / 8 do
      local m, next = string.sub(v, place + 8 * j - 8, place + 8 * j - 1), numbers('<d', ENDS, 8 * j - 7)
      if not marks[m] then blocks = blocks + next - at end
      marks[m], at = (marks[m] or 0) + 1, next
    end
  end
end
if work == w and prefill == p and blocks == b and requests == n then return {'same'} end
call('UNLINK', MARKS .. name)
if requests == 0 then
  if samples == 0 and filled == 0 then call('HDEL', LOAD, name)
  else call('HSET', LOAD, name, pack('<ddddddddddddd', 0, l, 0, 0, 0, 0, 0, 0, speed, samples, learnt, filled, filledAt)) end
else
  local set = {'', PAD}
  for m, count in pairs(marks) do
    set[#set + 1] = m; set[#set + 1] = string.format('%d', count)
    if #set >= 512 then call('HSET', MARKS .. name, unpack(set)); set = {} end
  end
  if #set > 0 then call('HSET', MARKS .. name, unpack(set)) end
  call('HSET', LOAD, name, pack('<ddddddddddddd', g, l, k, work, prefill, blocks, requests, since, speed, samples, learnt, filled, filledAt))
end
return {'mended', before, call('HGET', LOAD, name) or ''}
