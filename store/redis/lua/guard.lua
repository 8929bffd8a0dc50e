-- What the scripts begin with that write under guards.
--
-- A record is "fence,seq": all sequences up to seq have been applied; or
-- "fence,seq,next,attempt,parts" while next is being applied in parts, of which
-- so many have been by this attempt. Clears go before the first part.

-- judge compares a record with a guard. It returns 1 and the words of the record
-- when the guard may write; 0, the sequence has been applied; -1, the fence is
-- older than the record's; -2, there is no record, the generation has ended; -3,
-- the record is older than what the writer knows to be written: the server has
-- lost writes. With again 1 the last sequence may be applied once more.
local function judge(record, fence, seq, after, again)
  local f, s, rest = string.match(record or '', '^(%d+),(%d+)(.*)$')
  if not f then return -2 end
  if tonumber(f) > tonumber(fence) then return -1 end
  if tonumber(s) < tonumber(after) then return -3 end
  if tonumber(seq) < tonumber(s) or (seq == s and again ~= '1') then return 0 end
  local next, attempt, parts = string.match(rest, '^,(%d+),(%d+),(%d+)$')
  if f ~= fence then next = nil end
  return 1, s, next, attempt, parts
end
