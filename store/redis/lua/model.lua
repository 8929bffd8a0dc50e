-- Fixes the settings of a model, unless they are.
-- ARGV  schema partitions field json max_models [unregistered]
-- With unregistered, true or false, settings that are fixed get that, and keep all else.
-- Returns the settings in force.

local field, json = ARGV[3], ARGV[4]
local old = redis.call('HGET', meta, field)
if old then
  -- What cannot be is taken for lost, as readers do. A scheme may be a later version's.
  local good, set = pcall(cjson.decode, old)
  local size = good and type(set) == 'table' and type(set.scheme) == 'string' and set.scheme ~= '' and tonumber(set.block_size)
  if size and size >= 1 and size == math.floor(size) then
    local want = ARGV[6] or ''
    if want == '' or (want == 'true') == (set.unregistered == true) then return old end
    set.unregistered = want == 'true' or nil
    local new = cjson.encode(set)
    redis.call('HSET', meta, field, new)
    moved('m')
    return new
  end
end
-- Of the fields some are no models.
local others = 0
for _, there in ipairs(redis.call('HMGET', meta, 'schema', 'partitions', 'log', 'holder', 'ended')) do
  if there then others = others + 1 end
end
if not old and redis.call('HLEN', meta) - others >= tonumber(ARGV[5]) then
  return redis.error_reply('KVAFULL models ' .. ARGV[5])
end
redis.call('HSET', meta, field, json)
moved('m')
return json
