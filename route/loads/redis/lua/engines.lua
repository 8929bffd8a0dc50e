-- What scripts begin with, behind loads.lua, that tell of engines. They run seldom, and write text.

-- What an engine says: put at gen running waiting tokens usage room progress, what was booked then (work prefill
-- blocks requests), gone lacks since.
local function readEngine(v)
  if not v then return nil end
  local f = {}
  for n in string.gmatch(v, '%S+') do f[#f + 1] = tonumber(n) end
  if #f ~= 16 then return nil end
  return {put = f[1], at = f[2], gen = f[3], running = f[4], waiting = f[5], tokens = f[6], usage = f[7], room = f[8],
    progress = f[9], work = f[10], prefill = f[11], blocks = f[12], requests = f[13], gone = f[14], lacks = f[15], since = f[16]}
end

local function writeEngine(name, e)
  call('HSET', ENGINES, name, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    e.put, e.at, e.gen, e.running, e.waiting, e.tokens, e.usage, e.room, e.progress, e.work, e.prefill, e.blocks, e.requests,
    e.gone, e.lacks, e.since))
end

-- A turn: when it is due, and how often the engine has not answered.
local function readTurn(v)
  local due, missed = string.match(v or '', '^(%d+) (%d+)$')
  return tonumber(due or 0), tonumber(missed or 0)
end

-- check ends a script, before it writes anything, if an argument from the first to the last is no
-- number. It passes over every step-th, from the first one on.
local function check(first, last, step)
  for a = first, last do
    local n = tonumber(ARGV[a])
    if (not step or (a - first) % step ~= 0) and not (n and n == n) then error('arguments are wrong', 0) end
  end
end
