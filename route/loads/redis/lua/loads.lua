-- What all scripts of loads begin with. Those of a request have no functions: to make some
-- anew with every call takes as long as all else that such a script does.
-- KEYS  load  reservations  leases  marks (the beginning of the marks' key names)  settings  engines  turns;
--       what is done with every request leaves out the last two, reports the settings as well
-- ARGV  1 numbers, the first of which is the time in microseconds of the Unix epoch, 0 for the server's own
--
-- Numbers are little-endian doubles, since text takes several times as long. All are whole
-- and below 2^53 but for costs and speeds, and what they are made of.
-- A load, 104 bytes: gen life booked work prefill blocks requests since speed samples learnt filled
-- filledAt. One without requests keeps only its speed, and what its cache was filled with.
-- A reservation, 128 bytes: till prefilled output outblocks, which change, life prefill work
-- booked tokens tail expected blocksize lease, the length of the name, that of the name of who
-- prefills, 0 if that is no other, and the life there; then both names, and the marks, 8
-- bytes each. Its score in the leases may be before till, never behind it.
-- Lua makes a hash of every byte of a string that is new to it, those of replies included, in a
-- nanosecond each. So what nobody needs is not put together, a reply of every request is one
-- string, and formats of many numbers or marks are cut off D and C8. Whatever is long keeps Redis
-- from a listpack, which it searches from end to end. Looking up 14 marks takes 2 us in a table
-- and 60 to 300 in a listpack. So an id in the leases has PAD behind it, and marks have a field ''
-- with PAD beside them. ENDS are numbers: how many blocks end with each mark. D, C8, PAD and ENDS
-- stand before this, as redis.go writes them.
local LOAD, RES, LEASE, MARKS, SETTINGS, ENGINES, TURNS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local call, pack, numbers, max, floor = redis.call, struct.pack, struct.unpack, math.max, math.floor
local HALF = 200000000 -- us in which half of filled fades: FillHalf in loads.go
if not ((#KEYS == 4 or #KEYS == 5 or #KEYS == 7) and #ARGV > 0 and #ARGV[1] >= 8) then error('keys or numbers are wrong', 0) end
local now = numbers('<d', ARGV[1])
if not (now >= 0 and now < 2 ^ 53) then error('the time is wrong', 0) end
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
