-- Tells the present generation of a rank.
-- KEYS  live own s
-- ARGV  pod rank
-- Returns its number and its record, or nothing when there is none or the pod's
-- lease has run out.

local till = redis.call('ZSCORE', KEYS[1], ARGV[1])
if till then
  local now = redis.call('TIME')
  if tonumber(till) <= now[1] * 1000 + now[2] / 1000 then return {} end
end
local life = redis.call('HGET', KEYS[2], ARGV[2])
local record = life and redis.call('HGET', KEYS[3], life)
return record and {life, record} or {}
