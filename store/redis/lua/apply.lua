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
-- Returns 0 when all is done. When nothing is done: 1, the ids are not what the
-- writer believes; 2, the lease of some pod has run out and it has to be
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
      if (have[f] or '') ~= want[f] then return 1 end
    end
  end
  local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if next[2] then
    local now = redis.call('TIME')
    if tonumber(next[2]) <= now[1] * 1000 + now[2] / 1000 then return 2 end
  end
  first = owners + 2
end
if first > #KEYS then return 0 end

local find, match = string.find, string.match

-- wellformed is what a value must look like to be read. That ids ascend is the
-- writers' business and that they fit 32 bits the readers'.
local function wellformed(v)
  return find(v, '^[1-9][%d,]*$') and not find(v, ',[,0]') and not find(v, ',$')
end

-- add returns the value v with the id in it.
local function add(v, id)
  if not v or not wellformed(v) then return id end
  if find(',' .. v .. ',', ',' .. id .. ',', 1, true) then return v end
  local n = tonumber(id)
  if tonumber(match(v, '%d+$')) < n then return v .. ',' .. id end
  local out, done = {}, false
  for x in string.gmatch(v, '%d+') do
    if not done and tonumber(x) > n then
      out[#out + 1], done = id, true
    end
    out[#out + 1] = x
  end
  return table.concat(out, ',')
end

-- remove returns the value v without the id, false when none is left.
local function remove(v, id)
  if not v or v == id or not wellformed(v) then return false end
  local padded = ',' .. v .. ','
  local from = find(padded, ',' .. id .. ',', 1, true)
  if not from then return v end
  return string.sub(string.sub(padded, 1, from) .. string.sub(padded, from + #id + 2), 2, -2)
end

local old = redis.call('MGET', unpack(KEYS, first))
local set, del = {}, {}
local block = 0
while ARGV[at] do
  local ops, blocks = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  local sign, id = match(ops, '^([+-])(%d+)$')
  local exact = not sign and match(ops, '^=(.*)$')
  for _ = 1, blocks do
    block = block + 1
    local v = old[block]
    local new
    if sign == '+' then
      if not v then new = id elseif v == id then new = v else new = add(v, id) end
    elseif sign == '-' then
      new = remove(v, id)
    elseif exact then
      new = v ~= exact and v
    else
      new = v
      for s, i in string.gmatch(ops, '([+-])(%d+)') do
        if s == '+' then new = add(new, i) else new = remove(new, i) end
      end
    end
    if new ~= v then
      local key = KEYS[first + block - 1]
      if new then
        set[#set + 1] = key
        set[#set + 1] = new
      else
        del[#del + 1] = key
      end
    end
  end
end
if #set > 0 then redis.call('MSET', unpack(set)) end
if #del > 0 then redis.call('UNLINK', unpack(del)) end
return 0
