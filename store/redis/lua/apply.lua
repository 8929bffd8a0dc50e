-- Changes the holders of blocks.
--
-- KEYS  [live own...] block...
-- ARGV  pods, then for each pod: fields, then so many times: field id
--       then for each group of blocks: ops blocks
--
-- The first part says what the writer believes: these fields of the pods' own
-- hashes have these ids, "" for none. With 0 pods there is nothing to check and
-- KEYS has blocks only. The groups take the blocks in order; the ops are those
-- of each block of the group: "+17" adds holder 17, "-17" removes it, "+17-18"
-- does both; "=text" deletes a value that is exactly this text.
--
-- Returns the bytes of the values that have been looked at, so that the writer
-- can keep its next runs short. When nothing is done: -1, the ids are not what
-- the writer believes; -2, the lease of some pod has run out and it has to be
-- retired first.

local at = 2
local first = 1
local owners = tonumber(ARGV[1])
if owners > 0 then
  for p = 1, owners do
    local fields, want = {}, {}
    for f = 1, tonumber(ARGV[at]) do
      fields[f], want[f] = ARGV[at + 2 * f - 1], ARGV[at + 2 * f]
    end
    at = at + 1 + 2 * #fields
    local have = #fields > 0 and redis.call('HMGET', KEYS[1 + p], unpack(fields))
    for f = 1, #fields do
      if (have[f] or '') ~= want[f] then return -1 end
    end
  end
  local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if next[2] then
    local now = redis.call('TIME')
    if tonumber(next[2]) <= now[1] * 1000 + now[2] / 1000 then return -2 end
  end
  first = owners + 2
end
if first > #KEYS then return 0 end

local find, match, sub = string.find, string.match, string.sub

-- wellformed is what a value must look like to be read. That ids ascend is the
-- writers' business and that they fit 32 bits the readers'. Of a long value,
-- which is hardly there by accident, only the ends are looked at.
local function wellformed(v)
  if #v > 64 then return find(v, '^[1-9]') and find(v, '^%d', -1) end
  return find(v, '^[1-9][%d,]*$') and not find(v, ',[,0]') and not find(v, '^,', -1)
end

-- number returns the id that begins at a place in v, 0 for none.
local function number(v, at) return tonumber(match(v, '^%d+', at) or '0') end

-- place returns where in v the first id above n begins, nil if there is none.
local function place(v, n)
  if number(v, 1) > n then return 1 end
  -- An id that is not above n begins at from. Each step brings from and to
  -- nearer to each other; what is left is searched from from on.
  local from, to = 1, #v
  while to - from > 32 do
    local half = math.floor((from + to) / 2)
    local comma = find(v, ',', half, true)
    if not comma or comma + 1 >= to then
      to = half
    elseif number(v, comma + 1) > n then
      to = comma + 1
    else
      from = comma + 1
    end
  end
  while true do
    local comma = find(v, ',', from, true)
    if not comma then return nil end
    from = comma + 1
    if number(v, from) > n then return from end
  end
end

-- add returns the value v with the id in it.
local function add(v, id)
  if not v or not wellformed(v) then return id end
  local n = tonumber(id)
  if tonumber(match(v, '%d+$', -11)) < n then return v .. ',' .. id end
  if find(',' .. v .. ',', ',' .. id .. ',', 1, true) then return v end
  local at = place(v, n)
  if not at then return id end
  return sub(v, 1, at - 1) .. id .. ',' .. sub(v, at)
end

-- remove returns the value v without the id, false when none is left.
local function remove(v, id)
  if not v or v == id or not wellformed(v) then return false end
  local padded = ',' .. v .. ','
  local from = find(padded, ',' .. id .. ',', 1, true)
  if not from then return v end
  return sub(sub(padded, 1, from) .. sub(padded, from + #id + 2), 2, -2)
end

-- folder returns the function that makes a block's new value of its old one,
-- false being none in both.
local function folder(ops)
  local sign, id = match(ops, '^([+-])(%d+)$')
  if sign == '+' then return function(v) return add(v, id) end end
  if sign == '-' then return function(v) return remove(v, id) end end
  local exact = match(ops, '^=(.*)$')
  if exact then return function(v) return v ~= exact and v end end
  return function(v)
    for s, i in string.gmatch(ops, '([+-])(%d+)') do
      if s == '+' then v = add(v, i) else v = remove(v, i) end
    end
    return v
  end
end

local old = redis.call('MGET', unpack(KEYS, first))
local set, del = {}, {}
local block, bytes = 0, 0
while ARGV[at] do
  local fold, blocks = folder(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  -- Blocks of one chain are held by the same holders, so that few values differ.
  local folded = {}
  for i = block + 1, block + blocks do
    local v = old[i]
    local new = folded[v]
    if new == nil then
      new = fold(v)
      folded[v] = new
    end
    if v then bytes = bytes + #v end
    if new ~= v then
      if new then
        set[#set + 1] = KEYS[first + i - 1]
        set[#set + 1] = new
      else
        del[#del + 1] = KEYS[first + i - 1]
      end
    end
  end
  block = block + blocks
end
if #set > 0 then redis.call('MSET', unpack(set)) end
if #del > 0 then redis.call('UNLINK', unpack(del)) end
return bytes
