-- Count blocks that are about to be predicted of a rank, and say under which end: addSlice
-- in memory.go.
-- KEYS  the rank's slices: "until blocks until blocks ...", ascending, in ms
-- ARGV  1 now in us, 0 for the server's time  2 blocks  3 step in ms  4 ttl in ms  5 max  6 keep
-- Reply {until, over...}
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
now = math.floor(now / 1000)
local blocks, step, ttl, max, keep = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local list, over = {}, {}
local have = redis.pcall('GET', KEYS[1])
for u, n in string.gmatch(type(have) == 'string' and have or '', '(%d+) (%d+)') do
  if tonumber(u) > now then list[#list + 1] = {tonumber(u), tonumber(n)} end
end
local till = (math.floor(now / step) + 1) * step + ttl
if #list > 0 and list[#list][1] >= till then till = list[#list][1] else list[#list + 1] = {till, 0} end
local total = blocks
for i = 1, #list do total = total + list[i][2] end
if total > max then
  while total - blocks > 0 and total > keep do
    local first = table.remove(list, 1)
    total = total - first[2]
    if first[2] > 0 then over[#over + 1] = string.format('%.0f', first[1]) end
    if #list == 0 then
      till = till + 1
      list[1] = {till, 0}
      break
    end
  end
end
list[#list][2] = list[#list][2] + blocks
local text = {}
for i = 1, #list do text[i] = string.format('%.0f %.0f', list[i][1], list[i][2]) end
redis.call('SET', KEYS[1], table.concat(text, ' '), 'PX', string.format('%.0f', till - now + 1))
table.insert(over, 1, string.format('%.0f', till))
return over
