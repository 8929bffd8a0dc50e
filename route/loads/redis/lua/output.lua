-- A request has put out so many tokens so far.
-- ARGV  2 id  3 tokens
local id, tokens = ARGV[2], tonumber(ARGV[3])
local r = find(id)
if not r then return {} end
renew(id, r)
if tokens <= r.output then return report(r, r, false) end
local blocks = math.floor(tokens / r.size)
if r.expected > 0 then blocks = blocks * math.max(0, 1 - tokens / r.expected) end
blocks = math.floor(blocks)
local l = liveLoad(r)
if l then
  l.blocks = math.max(0, l.blocks + blocks - r.outblocks)
  writeLoad(r.name, l)
end
r.output, r.outblocks = tokens, blocks
writeReservation(id, r)
return report(r, r, true)
