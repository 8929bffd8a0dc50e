#!/usr/bin/env python3
"""A writer of the index from outside, as docs/redis-schema.md describes it.

    pip install -r examples/writers/python/requirements.txt
    examples/writers/python/writer.py --redis redis://localhost:6379 --pod 10.0.0.1:8000 --model meta-llama/Llama-3.1-8B

An engine, or whatever stands beside one, tells Redis which blocks a pod holds. It shares no code with kvatlas; it
needs redis-py, xxhash, and the Lua scripts in store/redis/lua, which are the interface. It registers the pod and
keeps its lease, and then reads the commands that examples/writers/go reads, one a line. It is for a single server or
one behind sentinels; what is different on a cluster is in the document.
"""

import argparse
import json
import pathlib
import struct
import sys
import threading

import redis
import xxhash

# The hash tags of the 64 partitions, from the table in the document.
TAGS = bytes.fromhex(
    "04 08 11 19 26 2e 33 3b 44 48 51 59 62 6a 73 7f"
    "01 80 10 18 23 2b 32 3a 41 49 50 58 63 6b 72 7a"
    "02 0e 13 1b 24 28 31 39 42 4a 53 5f 64 68 71 79"
    "03 0b 12 1a 21 29 30 38 43 4b 52 5a 61 69 70 78"
)
SCHEMA, PARTITIONS = 1, 64
MAX_PODS, MAX_HOLDERS, MAX_MODELS = 16384, 131072, 1024
OUTDATED, LATE = -5, -6  # results of apply.lua, from the document's table
MAX_RANK, TIERS = 1023, ("gpu", "cpu", "disk", "shared")
# The two lines of the plain form, from the document: they add a text to a block, and take it out, and leave those of
# others as they are.
ADD_TEXT = """local v=redis.call('GET',KEYS[1]) or '' if v:find('^[%d,]+$') then v='' end if (','..v..','):find(','..ARGV[1]..',',1,true) then return redis.call('PERSIST',KEYS[1]) end redis.call('SET',KEYS[1],v..','..ARGV[1]) return 1"""
REMOVE_TEXT = """local o={} for t in (redis.call('GET',KEYS[1]) or ''):gmatch('[^,]+') do if t~=ARGV[1] then o[#o+1]=t end end if #o==0 then return redis.call('DEL',KEYS[1]) end redis.call('SET',KEYS[1],table.concat(o,','),'KEEPTTL') return #o"""
CALL_BLOCKS = 512  # how many blocks one call changes at most
SCRIPTS = {
    "register": ["registry", "register"],
    "retire": ["registry", "retire"],
    "model": ["registry", "model"],
    "holders": ["registry", "guard", "holders"],
    "reserve": ["registry", "reserve"],
    "mark": ["mark"],
    "apply": ["guard", "apply"],
}


def tagged(partition, rest):
    return b"kva{" + TAGS[partition : partition + 1] + b"}" + rest


def reg(name):
    return b"kva{reg}:" + name.encode()


def block_keys(tokens, size):
    """The keys of the full blocks of tokens, scheme native."""
    keys = []
    for at in range(0, len(tokens) - size + 1, size):
        key = xxhash.xxh3_64_intdigest(struct.pack(f"<{size}I", *tokens[at : at + size]), 1337)
        if keys:
            key = xxhash.xxh3_64_intdigest(struct.pack("<QQ", keys[-1], key), 1337)
        keys.append(key)
    return keys


def check_place(rank, tier, every=False):
    """Refuse ranks and tiers that are none: the scripts take any word, and nobody finds what is held there.

    every allows "*" for all."""
    number = rank.isascii() and rank.isdecimal() and str(int(rank[:5])) == rank and int(rank) <= MAX_RANK
    if not number and not (every and rank == "*"):
        raise ValueError(f"rank {rank!r} is no number from 0 to {MAX_RANK}")
    if tier not in TIERS and not (every and tier == "*"):
        raise ValueError(f"tier {tier!r} is not one of {', '.join(TIERS)}")


def numbers(words, base, bits):
    """Words as numbers of so many bits."""
    out = [int(word, base) for word in words]
    for word, n in zip(words, out):
        if not 0 <= n < 1 << bits:
            raise ValueError(f"{word!r} is no number of {bits} bits")
    return out


class Writer:
    """Writes for one pod. Its methods may be called from several threads."""

    def __init__(self, client, scripts, pod, model, lease, block_size):
        self.redis, self.pod, self.lease = client, pod, lease
        self.mask = xxhash.xxh3_64_intdigest(model.encode(), 1337)
        self.text = json.dumps({"name": pod, "model": model, "lease_s": lease})
        self.scripts = {
            name: client.register_script("".join((scripts / f"{f}.lua").read_text() for f in files))
            for name, files in SCRIPTS.items()
        }
        self.lock = threading.RLock()
        self.ids = {}  # holder ids by "rank/tier", as far as they are known
        self.gone = False  # retired, until the next write
        self.stopped = threading.Event()
        settings = json.dumps({"block_size": block_size, "scheme": "native"})
        in_force = json.loads(self.registry("model", "", f"model:{model}", settings, MAX_MODELS))
        if in_force["scheme"] != "native":
            raise ValueError(f"the model is indexed as {in_force}")
        self.block_size = in_force["block_size"]
        self.register()

    def registry(self, script, pod, *args):
        """Run a script of the registry for a pod."""
        keys = ["meta", "count", "epoch", "pods", "live", "gen", "s", f"own:{pod}", "logged", "log"]
        return self.scripts[script](keys=[reg(k) for k in keys], args=[SCHEMA, PARTITIONS, *args])

    def register(self):
        """Register the pod or renew its lease."""
        self.registry("register", self.pod, self.pod, self.text, int(self.lease * 1000), MAX_PODS)
        self.gone = False

    def keep(self):
        """Renew the lease until stopped is set."""
        while not self.stopped.wait(self.lease / 3):
            try:
                with self.lock:
                    if not self.gone:
                        self.register()
            except redis.RedisError as e:  # the next try may go better, while the lease lasts
                print("the lease:", e, file=sys.stderr)

    def retire(self):
        with self.lock:
            self.ids.clear()
            self.gone = True
            self.registry("retire", self.pod, self.pod, "always")

    def holders(self, clears=(), wanted=()):
        """Make clears, and return the ids of holders, which are given one if they have none."""
        args = [self.pod, self.text, MAX_PODS, MAX_HOLDERS, 0, len(clears)]
        for rank, tier in clears:
            args += [rank, tier]
        args.append(len(wanted))
        for rank, tier in wanted:
            args += [rank, tier, 1]
        while True:
            try:
                return self.registry("holders", self.pod, *args)
            except redis.ResponseError as e:
                word, _, following = str(e).partition(" ")
                if word != "KVARESERVE":
                    raise
                self.reserve(int(following))

    def reserve(self, following):
        """Raise the limit of ids: first every partition remembers the new one."""
        marks = self.redis.mget([tagged(p, b":high") for p in range(PARTITIONS)])
        highest = max(int(m or 0) for m in marks)
        if highest == 0 and following == 1 and self.redis.scan(0, "kva{?}????????", 10000)[1]:
            # An index that has lost all it knew: begin at the time.
            highest = (self.redis.time()[0] - 1767225600) * 8
        while True:
            limit = max(highest, following) + 4096
            was = max(self.scripts["mark"](keys=[tagged(p, b":high")], args=[limit]) for p in range(PARTITIONS))
            if was <= highest:
                break
            highest = was  # somebody else is at it
        self.registry("reserve", "", highest, limit)

    def key(self, block_key):
        """The name of a block's key in Redis."""
        store = block_key ^ self.mask
        return tagged(store & 63, struct.pack(">Q", store))

    def change(self, sign, rank, tier, keys):
        """Add blocks to a holder ("+") or remove them ("-")."""
        for at in range(0, len(keys), CALL_BLOCKS):
            while self.try_change(sign, rank, tier, keys[at : at + CALL_BLOCKS]) < 0:
                pass

    def try_change(self, sign, rank, tier, keys):
        """Make one call of apply.lua; below 0 it has done nothing, and is to be made again."""
        place = f"{rank}/{tier}"
        with self.lock:
            if self.gone:
                self.register()
            if place not in self.ids:
                self.ids[place] = self.holders(wanted=[(rank, tier)])[0].decode()
            holder = self.ids[place]
            names = [reg("live"), reg(f"own:{self.pod}"), *map(self.key, keys), reg("logged"), reg("log")]
            said = self.scripts["apply"](keys=names, args=[1, 0, 0, 1, place, holder, sign + holder, len(keys)])
            if said == OUTDATED:  # others have ended this life
                del self.ids[place]
            elif said == LATE:  # some pod is late, and must be retired first
                seconds, microseconds = self.redis.time()
                now = seconds * 1000 + microseconds // 1000
                for pod in self.redis.zrange(reg("live"), "-inf", now, byscore=True):
                    self.registry("retire", pod.decode(), pod, "expired")
            return said

    def clear(self, rank, tier):
        """End what a rank holds in a tier, "*" for all."""
        with self.lock:
            self.ids.clear()
            if self.gone:
                self.register()
            self.holders(clears=[(rank, tier)])

    def plain(self, script, keys):
        """Run one of the two lines of the plain form for each block. A text stands for rank 0 in tier gpu."""
        for k in keys:
            self.redis.eval(script, 1, self.key(k), self.pod)

    def do(self, line):
        """Carry out a command."""
        verb, *words = line.split()
        if verb == "retire" and not words:
            self.retire()
        elif verb == "clear" and len(words) == 2:
            check_place(*words, every=True)
            self.clear(*words)
        elif verb in ("plain", "unplain"):
            self.plain(ADD_TEXT if verb == "plain" else REMOVE_TEXT, numbers(words, 16, 64))
        elif verb in ("add", "remove") and len(words) > 2:
            check_place(*words[:2])
            self.change("+" if verb == "add" else "-", words[0], words[1], numbers(words[2:], 16, 64))
        elif verb == "tokens" and len(words) > 2:
            check_place(*words[:2])
            self.change("+", words[0], words[1], block_keys(numbers(words[2:], 10, 32), self.block_size))
        else:
            raise ValueError(f"{line!r} is no command")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--redis", default="redis://localhost:6379", help="where Redis is")
    p.add_argument("--scripts", default="store/redis/lua", type=pathlib.Path, help="the folder of the Lua scripts")
    p.add_argument("--pod", required=True, help="the pod's name: host:port")
    p.add_argument("--model", required=True, help="the model's name")
    p.add_argument("--lease", default=30, type=float, help="seconds that the pod outlives this process")
    p.add_argument("--block-size", default=64, type=int, help="tokens of a block, of a model that is new to the index")
    a = p.parse_args()
    writer = Writer(redis.Redis.from_url(a.redis), a.scripts, a.pod, a.model, a.lease, a.block_size)
    threading.Thread(target=writer.keep, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            writer.do(line)
            print("ok", flush=True)
        except (redis.RedisError, ValueError) as e:
            print("error", e, flush=True)
    writer.stopped.set()


if __name__ == "__main__":
    main()
