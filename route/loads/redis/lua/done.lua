-- The prefill of a request has ended.
-- ARGV  2 id  3 cached tokens, negative if not known  4 quadratic  5 overhead  6 whether to learn
local id = ARGV[2]
local r = find(id)
if not r then return {} end
renew(id, r)
local at = r.pair or r
if r.prefilled then return report(r, at, false) end
r.prefilled = true
writeReservation(id, r)
local l = liveLoad(at)
if not l then return report(r, at, true) end
local began = math.max(r.booked, l.since)
l.work, l.prefill, l.since = math.max(0, l.work - r.work), math.max(0, l.prefill - r.prefill), now
writeLoad(at.name, l)
if r.pair then leave(at, r.marks, 0, 0, r.tail) end

-- learn in shape.go
local n, c = r.prefill, tonumber(ARGV[3])
if c >= 0 then c = math.min(c, r.tokens); n = r.tokens - c else c = r.tokens - n end
local ms = (now - began) / 1000 - tonumber(ARGV[5])
if ARGV[6] == '1' and n >= 256 and ms >= 0.01 then
  local total = n + c
  local units = math.floor(math.min(2 ^ 44, math.max(0, n + tonumber(ARGV[4]) * (total * total - c * c))) + 0.5)
  local speed, samples = readSpeed(redis.call('HGET', SPEED, at.name))
  local sample = units / ms
  if samples == 0 or speed <= 0 then
    speed, samples = sample, 1
  else
    local ratio = math.min(2, math.max(0.5, sample / speed))
    speed, samples = speed * ratio ^ math.max(0.1, 1 / (samples + 1)), samples + 1
  end
  redis.call('HSET', SPEED, at.name, string.format('%.17g %.0f %.0f', math.min(1e12, math.max(1e-6, speed)), samples, now))
end
return report(r, at, true)
