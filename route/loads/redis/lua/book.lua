-- Choose among candidates and book.
-- ARGV  2 id  3 lease in us  4 tokens  5 tail  6 marks  7 expected  8 block size
--       9-13 weights  14 temperature  15 draw  16 most reservations
--       17 version of the settings
--       then the candidates: see weigh
-- Reply {'again', now, name} | {'full', now} | {'settings', now} | {'busy' | 'booked', now, name, costs, loads, speeds}
local id, tail, marks = ARGV[2], tonumber(ARGV[5]), split(ARGV[6])
endOverdue(8)
local old = readReservation(redis.call('HGET', RES, id))
if old then return {'again', string.format('%.0f', now), old.name} end
if redis.call('HLEN', RES) >= tonumber(ARGV[16]) then return {'full', string.format('%.0f', now)} end

if (redis.call('HGET', SETTINGS, 'version') or '0') ~= ARGV[17] then return {'settings', string.format('%.0f', now)} end

local n = (#ARGV - 17) / 11
local costs, texts, loads, speeds, at = weigh(18, n, 9, marks, tail)
local best = pick(costs, n, tonumber(ARGV[14]), tonumber(ARGV[15]))
if best == 0 then return {'busy', string.format('%.0f', now), '', texts, loads, speeds} end

local a = at[best]
local name, uncached, work = ARGV[a], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
local life = addRequest(a, loads[best], uncached, work, marks, tail)
local r = {life = life, prefilled = false, prefill = uncached, work = work, booked = now, tokens = tonumber(ARGV[4]), tail = tail,
  output = 0, outblocks = 0, expected = tonumber(ARGV[7]), size = tonumber(ARGV[8]), lease = tonumber(ARGV[3]), name = name, marks = ARGV[6]}
writeReservation(id, r)
renew(id, r)
return {'booked', string.format('%.0f', now), name, texts, loads, speeds}
