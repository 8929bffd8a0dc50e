-- Tells what a reader has to know of the registry, or what has changed of it. It
-- writes nothing.
--
-- KEYS  epoch live count gen pods meta
-- ARGV  the epoch of the reader's registry, 0 for none; the most pods to tell of
--
-- Returns {epoch, s, us, swept, leases, what, names, texts, copies, meta}: the
-- epoch; the server's time; how many ended lives are swept, and how many there are,
-- with a space between; the leases that end first, pod after end in ms; what follows, which is
--
--   same  nothing: the reader's registry is right
--   news  the pods that have changed, and meta if it has
--   all   all pods, and meta
--   many  meta alone: there are more pods than that, and they are to be read
--         by HSCAN of pods and HMGET of gen
--
-- Of each pod there are the name, the registration and the entry in gen, false
-- for what is not there. The news are lines of gen's field '@': see registry.lua.

local epoch, live, count, gen, pods, meta = unpack(KEYS)
local from, most = ARGV[1], tonumber(ARGV[2])
local now = redis.call('TIME')
for _, look in ipairs({{'GET', epoch}, {'ZRANGE', live, 0, 0}, {'HLEN', count}, {'HLEN', gen}, {'HLEN', pods}, {'HLEN', meta}}) do
  local reply = redis.pcall(unpack(look))
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
    return redis.error_reply('WRONGTYPE the registry has the key ' .. look[2] .. ', which is of another type: UNLINK it')
  end
end
-- What is no number is as good as lost, as for the reader of blocks.
local function number(v)
  v = string.match(v or '', '^%d+$') or '0'
  return tonumber(v) < 9007199254740992 and v or '0'
end
local out = {number(redis.call('GET', epoch)), now[1], now[2]}
local lives = redis.call('HMGET', count, 'swept', 'ended')
out[4] = number(lives[1]) .. ' ' .. number(lives[2])
out[5] = redis.call('ZRANGE', live, 0, 63, 'WITHSCORES')

-- news returns the pods that have changed since an epoch, and whether the models
-- have; nil when that cannot be told.
local function news(since, to)
  local text = redis.call('HMGET', gen, '@')[1]
  local floor = text and tonumber(string.match(text, '^(%d+)\n'))
  if not floor or floor > since or since > to then return nil end
  -- A server that was set back has another history from there on. The reader's epoch must
  -- be one of this history, or it knows changes that have been undone.
  if floor ~= since and not string.find(text, '\n' .. from .. ' ', 1, true) then return nil end
  local names, seen, models, last = {}, {}, false, 0
  for e, what in string.gmatch(text, '(%d+) ([^\n]*)\n') do
    e = tonumber(e)
    if e > since then
      local kind, pod = string.sub(what, 1, 1), string.sub(what, 2)
      if kind == 'p' then
        if not seen[pod] then names[#names + 1] = pod end
        seen[pod] = true
        if #names > most then return nil end
      elseif kind == 'm' then
        models = true
      elseif kind ~= 's' then
        return nil
      end
    end
    last = e
  end
  if last ~= to then return nil end
  return names, models
end

if from == out[1] and from ~= '0' then
  out[6] = 'same'
  return out
end
local names, models = news(tonumber(from), tonumber(out[1]))
out[6], out[7], out[8], out[9], out[10] = 'news', names or {}, {}, {}, {}
if not names then
  models = true
  if redis.call('HLEN', pods) > most then
    out[6] = 'many'
  else
    out[6] = 'all'
    local all = redis.call('HGETALL', pods)
    for i = 1, #all, 2 do
      out[7][#out[7] + 1], out[8][#out[8] + 1] = all[i], all[i + 1]
    end
  end
elseif #names > 0 then
  out[8] = redis.call('HMGET', pods, unpack(names))
end
if #out[7] > 0 then
  local fields = {}
  for i, name in ipairs(out[7]) do fields[i] = '@' .. name end
  out[9] = redis.call('HMGET', gen, unpack(fields))
end
if models then out[10] = redis.call('HGETALL', meta) end
return out
