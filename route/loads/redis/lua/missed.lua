-- The engine of a pod did not answer.
-- ARGV  2 pod  3 the time between turns, in us  4 the longest, in us
if #ARGV ~= 4 then error('arguments are wrong', 0) end
check(3, 4)
local _, missed = readTurn(call('HGET', TURNS, ARGV[2]))
missed = math.min(missed + 1, 1000)
local pause = math.min(tonumber(ARGV[4]), tonumber(ARGV[3]) * 2 ^ math.min(missed, 16))
call('HSET', TURNS, ARGV[2], string.format('%.0f %d', now + pause, missed))
call('PEXPIRE', TURNS, 86400000)
return {1}
