-- A request has put out so many tokens so far.
-- ARGV  2 id  3 tokens
-- Reply '' | the reservation as it was
local id, out = ARGV[2], tonumber(ARGV[3])
if not (#ARGV == 3 and out and out >= 0 and out < 2 ^ 53) then error('arguments are wrong', 0) end
local v = call('HGET', RES, id)
if not v or #v < 128 then return '' end
local till, prefilled, output, outblocks, life, _, _, _, _, _, expected, size, lease, length = numbers('<dddddddddddddd', v)
if till <= now then return '' end
local before = outblocks
if out > output then
  output, outblocks = out, floor(out / size)
  if expected > 0 then outblocks = floor(outblocks * max(0, 1 - out / expected)) end
end
local renewed = pack('<ddddc0', now + lease, prefilled, output, outblocks, string.sub(v, 33))
if type(redis.pcall('HSET', RES, id, renewed)) == 'table' then -- no memory: all is let through behind what frees
  call('HDEL', RES, '')
  call('HSET', RES, id, renewed)
end
if outblocks == before then return v end
local name = string.sub(v, 129, 128 + length)
local row = call('HGET', LOAD, name)
if row and #row == 104 then
  local g, l, k, w, p, b, n, since, speed, samples, learnt, filled, filledAt = numbers('<ddddddddddddd', row)
  if l == life then
    call('HSET', LOAD, name, pack('<ddddddddddddd', g, l, k, w, p, max(0, b + outblocks - before), n, since, speed, samples, learnt, filled, filledAt))
  end
end
return v
