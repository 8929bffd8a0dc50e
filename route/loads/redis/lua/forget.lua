-- Forget loads without requests, and what engines have said, of which nobody has told for long.
-- ARGV  2 how long such a load is kept, in us  3 the same of an engine's load  4... rank and pod of each
local keep, keepEngine = tonumber(ARGV[2]), tonumber(ARGV[3])
if not (#ARGV >= 4 and keep and keepEngine) then error('arguments are wrong', 0) end
for i = 4, #ARGV do
  local row, engine = call('HGET', LOAD, ARGV[i]), call('HGET', ENGINES, ARGV[i])
  if row and #row == 104 then
    local requests, _, _, _, learnt, _, filledAt = numbers('<ddddddd', row, 49)
    if requests == 0 and now - max(learnt, filledAt) > keep then call('HDEL', LOAD, ARGV[i]) end
  end
  if engine then
    local _, fields = string.gsub(engine, '%S+', '')
    if fields ~= 16 or now - tonumber(string.match(engine, '^%d+') or 0) > keepEngine then call('HDEL', ENGINES, ARGV[i]) end
  end
end
return {}
