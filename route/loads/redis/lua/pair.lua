-- Choose a place that prefills and one that decodes, and book both.
-- ARGV  2 id  3 lease in us  4 tokens  5 tail  6 marks  7 expected  8 block size
--       9-13 weights of who decodes  14 temperature  15 draw  16 most reservations
--       17 version of the settings  18-22 weights of who prefills
--       23-26 how many decode, how many prefill, options, last resorts
--       then who decodes and who prefills: see weigh; the options and the last resorts, of each: who
--       prefills and who decodes, counted from 1, extra, factor
-- Reply {'again', now, name, name of who prefills} | {'full', now} | {'settings', now} |
--       {'busy' | 'booked', now, name, costs, loads, speeds, name of who prefills, costs, loads, speeds, totals,
--       whether they are those of the last resorts}
local id, tail, marks = ARGV[2], tonumber(ARGV[5]), split(ARGV[6])
local stamp = string.format('%.0f', now)
endOverdue(8)
local old = readReservation(redis.call('HGET', RES, id))
if old then return {'again', stamp, old.name, (old.pair or old).name} end
if redis.call('HLEN', RES) >= tonumber(ARGV[16]) then return {'full', stamp} end
if (redis.call('HGET', SETTINGS, 'version') or '0') ~= ARGV[17] then return {'settings', stamp} end

local nd, np, options, resorts = tonumber(ARGV[23]), tonumber(ARGV[24]), tonumber(ARGV[25]), tonumber(ARGV[26])
local costs, texts, loads, speeds, at = weigh(27, nd, 9, marks, tail)
local pcosts, ptexts, ploads, pspeeds, pat = weigh(27 + 11 * nd, np, 18, marks, tail)
local from = 27 + 11 * (nd + np)

-- try returns the option that is taken of n that begin at ARGV[a], 0 for none, and all their costs.
local function try(a, n)
  local totals, out = {}, {}
  for i = 1, n do
    local o = a + 4 * (i - 1)
    local p, d = pcosts[tonumber(ARGV[o])], costs[tonumber(ARGV[o + 1])]
    out[i] = 'nan'
    if p and d then
      totals[i] = tonumber(ARGV[o + 3]) * (p + d + tonumber(ARGV[o + 2]))
      out[i] = string.format('%.17g', totals[i])
    end
  end
  return pick(totals, n, tonumber(ARGV[14]), tonumber(ARGV[15])), out
end

local best, totals = try(from, options)
local resorted = 0
if best == 0 and resorts > 0 then
  from, resorted = from + 4 * options, 1
  best, totals = try(from, resorts)
end
if best == 0 then return {'busy', stamp, '', texts, loads, speeds, '', ptexts, ploads, pspeeds, totals, resorted} end

local o = from + 4 * (best - 1)
local p, d = tonumber(ARGV[o]), tonumber(ARGV[o + 1])
local name, pname = ARGV[at[d]], ARGV[pat[p]]
local uncached, work = tonumber(ARGV[pat[p] + 2]), tonumber(ARGV[pat[p] + 3])
local r = {prefilled = false, prefill = uncached, work = work, booked = now, tokens = tonumber(ARGV[4]), tail = tail,
  output = 0, outblocks = 0, expected = tonumber(ARGV[7]), size = tonumber(ARGV[8]), lease = tonumber(ARGV[3]), name = name, marks = ARGV[6]}
if name == pname then
  r.life = addRequest(at[d], loads[d], uncached, work, marks, tail)
else
  r.life = addRequest(at[d], loads[d], 0, 0, marks, tail)
  r.pair = {name = pname, life = addRequest(pat[p], ploads[p], uncached, work, marks, tail)}
end
writeReservation(id, r)
renew(id, r)
return {'booked', stamp, name, texts, loads, speeds, pname, ptexts, ploads, pspeeds, totals, resorted}
