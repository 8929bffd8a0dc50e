-- Compare a load with the reservations that are part of it, and set right what differs.
-- ARGV  2 name  3 life  4 booked: how many had been booked when the ids were read  5... ids
-- Reply {'same'} | {'moved'}: the ids are not all that there are | {'mended', before, after}
local name = ARGV[2]
for i = 5, #ARGV do -- a reservation without a lease would never end
  if not redis.call('ZSCORE', LEASE, ARGV[i]) then
    local r = readReservation(redis.call('HGET', RES, ARGV[i]))
    if r then renew(ARGV[i], r) end
  end
end
local before = redis.call('HGET', LOAD, name)
local l = readLoad(before)
if not l then return {'same'} end
if l.life ~= tonumber(ARGV[3]) or l.booked ~= tonumber(ARGV[4]) then return {'moved'} end
local sum, marks = {gen = l.gen, life = l.life, booked = l.booked, work = 0, prefill = 0, blocks = 0, requests = 0, since = l.since}, {}
for i = 5, #ARGV do
  local r = readReservation(redis.call('HGET', RES, ARGV[i]))
  local decodes, prefills = false, false
  if r then
    decodes = r.name == name and r.life == l.life
    prefills = not r.prefilled and (r.pair or r).name == name and (r.pair or r).life == l.life
  end
  if prefills then sum.work, sum.prefill = sum.work + r.work, sum.prefill + r.prefill end
  if decodes or prefills then
    sum.requests, sum.blocks = sum.requests + 1, sum.blocks + r.tail + (decodes and r.outblocks or 0)
    local at = 0
    for _, m in ipairs(split(r.marks)) do
      local next = at + math.max(1, math.floor(at / 4))
      if not marks[m] then sum.blocks = sum.blocks + next - at end
      marks[m], at = (marks[m] or 0) + 1, next
    end
  end
end
if sum.work == l.work and sum.prefill == l.prefill and sum.blocks == l.blocks and sum.requests == l.requests then return {'same'} end
redis.call('UNLINK', MARKS .. name)
local set = {}
for m, n in pairs(marks) do
  set[#set + 1] = m; set[#set + 1] = n
  if #set >= 512 then redis.call('HSET', MARKS .. name, unpack(set)); set = {} end
end
if #set > 0 then redis.call('HSET', MARKS .. name, unpack(set)) end
if sum.requests == 0 then redis.call('HDEL', LOAD, name) else writeLoad(name, sum) end
return {'mended', before, redis.call('HGET', LOAD, name) or ''}
