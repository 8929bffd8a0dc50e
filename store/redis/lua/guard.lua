-- What the scripts begin with that write under guards, or answer with a result.

-- The results. docs/redis-schema.md says what each means.
local APPLIED = 1
local DUPLICATE = 0
local FENCED = -1
local ENDED = -2
local LOST = -3
local GAP = -4
local OUTDATED = -5
local LATE = -6
local UNREGISTERED = -7
local COMPACTED = -8

-- A record is "fence,seq" when all sequences up to seq have been applied. It is
-- "fence,seq,next,attempt,parts" while next is being applied in parts, of which so many
-- have been by this attempt. Clears go before the first part.

-- judge compares a record with a guard. It returns APPLIED and the words of the record
-- when the guard may write, else DUPLICATE, FENCED, ENDED or LOST. FENCED: the fence is
-- older than the record's. ENDED: there is no record. LOST: the record is older than what
-- the writer knows to be written. With again 1 the last sequence may be applied once more.
local function judge(record, fence, seq, after, again)
  local f, s, rest = string.match(record or '', '^(%d+),(%d+)(.*)$')
  if not f then return ENDED end
  if tonumber(f) > tonumber(fence) then return FENCED end
  if tonumber(s) < tonumber(after) then return LOST end
  if tonumber(seq) < tonumber(s) or (seq == s and again ~= '1') then return DUPLICATE end
  local next, attempt, parts = string.match(rest, '^,(%d+),(%d+),(%d+)$')
  if f ~= fence then next = nil end
  return APPLIED, s, next, attempt, parts
end
