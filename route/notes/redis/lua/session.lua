-- Where a session is, or bind it.
-- KEYS  sessions: session -> rank:pod  ends: session -> end of its lease, in us
-- ARGV  1 now in us, 0 for the server's time  2 session
--       and to bind it  3 rank:pod  4 lease in us  5 most sessions  6 how long the keys live without a word, in ms
-- Reply {} | {rank:pod, what is left of its lease}
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local session = ARGV[2]
if not ARGV[3] then
  local at, till = redis.call('HGET', KEYS[1], session), redis.call('ZSCORE', KEYS[2], session)
  if not at or not till or tonumber(till) <= now then return {} end
  return {at, string.format('%.0f', till - now)}
end
if redis.call('HEXISTS', KEYS[1], session) == 0 then
  local ends = redis.call('ZRANGE', KEYS[2], 0, 7, 'WITHSCORES')
  local room = tonumber(ARGV[5]) - redis.call('ZCARD', KEYS[2])
  for i = 1, #ends, 2 do
    if tonumber(ends[i + 1]) <= now or room <= 0 then
      redis.call('HDEL', KEYS[1], ends[i])
      redis.call('ZREM', KEYS[2], ends[i])
      room = room + 1
    end
  end
end
redis.call('HSET', KEYS[1], session, ARGV[3])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[4])), session)
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], ARGV[6]) end
return {}
