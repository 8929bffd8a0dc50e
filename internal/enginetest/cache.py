"""Run an engine's own cache under a random load, and publish its events by the engine's own publisher.

  cache.py --engine vllm --module DIR/vllm-0.33.0 --endpoint 'tcp://*:5557' --replay 'tcp://*:5558' --seed 1 ...

Each line of stdin is a command in JSON, answered by a line of JSON:

  {"op": "next"}       play on to the next request, and say what the cache has of it before it begins:
                       {"tokens": "<base64 of 32 bits each>", "lora": "", "salt": "", "held": 64, "whole": 64, "first_group": 64,
                        "doubted": [], "published": 12}
  {"op": "history"}    what was published of the blocks of that request, as lines of text
"""


class Prompt(types.SimpleNamespace):
    """A prompt of the load: number, tokens, lora, salt, report."""


class Load:
    """Prompts of conversations, which share their beginnings."""

    def __init__(self, rng, o):
        self.rng, self.o, self.number = rng, o, 0
        self.systems = [self.text(n) for n in (0, 1, o.block_size, 33, 128, 300)]
        self.open = []

    def text(self, n):
        return [self.rng.randrange(10, 50_000) for _ in range(n)]

    def conversation(self):
        c = Prompt(number=0, tokens=list(self.rng.choice(self.systems)), lora="", salt="")
        if self.rng.random() < self.o.loras:
            c.lora = self.rng.choice(["law", "sql"])
        if self.rng.random() < self.o.salts:
            # Older vLLMs take a salt for the adapter of that name (vllm#44701).
            c.salt = self.rng.choice(["tenant-a", "tenant-b"])
        self.open.append(c)
        if len(self.open) > 24:
            del self.open[self.rng.randrange(24)]
        return c

    def next(self):
        """The next prompt and the conversation that it belongs to."""
        rng, size = self.rng, self.o.block_size
        c = rng.choice(self.open) if self.open and rng.random() < 0.85 else self.conversation()
        if len(c.tokens) > 900:
            self.open.remove(c)
            c = self.conversation()
        tokens, kind = list(c.tokens), rng.random()
        if kind < 0.1 and tokens:
            pass  # the same again
        elif kind < 0.25 and len(tokens) > size:
            # A part of it, often of whole blocks.
            tokens = tokens[: rng.randrange(1, len(tokens) // size + 1) * size]
            tokens += self.text(rng.choice([0, 0, 1, size]))
        else:
            tokens += self.text(rng.choice([1, size - len(tokens) % size, rng.randrange(1, 120)]))
            c.tokens = list(tokens)
        self.number += 1
        return Prompt(number=self.number, tokens=tokens, lora=c.lora, salt=c.salt, report=rng.random() < self.o.reports), c


class Engine:
    """A scheduler that does things in random order."""

    def __init__(self, rng, cache, load, limit, short):
        self.rng, self.cache, self.load, self.limit, self.short = rng, cache, load, limit, short
        self.running, self.waiting = [], []  # each (request, conversation)

    def play(self):
        """Do one random thing."""
        kind = self.rng.random()
        if kind < 0.08 and self.running:
            self.preempt()
        elif kind < 0.10:
            self.cache.lose(self.rng)
        elif kind < 0.1003:
            self.drain()
            self.cache.reset()
        elif kind < 0.30 and self.waiting:
            self.begin()
        elif self.running:
            self.go_on(self.rng.choice(self.running))

    def chunk(self):
        """How much of a prompt is computed at once. What is left of a step's budget can be less than a block."""
        return self.rng.choice([*self.short, 16, 64, 100, 256, 4096])

    def begin(self):
        r, c = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        while not self.cache.begin(r, self.chunk()):
            if not self.running:
                return  # it has no room at all
            self.finish(self.running[0])
        self.running.append((r, c))

    def go_on(self, which):
        r, c = which
        if self.cache.left(r):
            if not self.cache.goes_on(r, self.chunk()):
                self.preempt()
        elif self.rng.random() < 0.4:
            self.finish(which)
        else:
            for _ in range(self.rng.choice([1, 3, 20])):
                self.cache.say(r, self.rng.randrange(10, 50_000))
                if not self.cache.goes_on(r, 1):
                    self.finish(which)
                    return

    def finish(self, which):
        r, c = which
        self.cache.end(r)
        self.running.remove(which)
        all = self.cache.tokens(r)
        if all[: len(c.tokens)] == c.tokens:
            c.tokens = all

    def preempt(self):
        which = self.rng.choice(self.running)
        self.cache.preempt(which[0])
        self.running.remove(which)
        self.waiting.append(which)

    def drain(self):
        while self.running:
            self.finish(self.running[0])

    def arrive(self):
        """A request comes: returned before anything of it is computed. It begins next, or waits."""
        p, c = self.load.next()
        r = self.cache.request(p)
        self.waiting.append((r, c))
        while len(self.waiting) > 4:
            self.begin()
        while len(self.running) > self.limit:
            self.finish(self.running[0])
        return p, r


class Record:
    """What was published."""

    def __init__(self):
        self.lines = []  # (batch, event)

    def add(self, batch, events):
        self.lines += [(batch, e) for e in events]

    def of(self, p):
        """What was published of the blocks of a prompt, each as the place of its first token."""
        place, out = {}, []
        for batch, e in self.lines:
            name = type(e).__name__
            if name == "AllBlocksCleared":
                out.append(f"{batch}: {name}")
                continue
            told = self.stored(p, place, e) if name == "BlockStored" else [place[h][0] for h in e.block_hashes if h in place]
            if told:
                more = {k: getattr(e, k, None) for k in ("medium", "group_idx")}
                out.append(f"{batch}: {name} {told} " + " ".join(f"{k}={v}" for k, v in more.items() if v is not None))
        return out

    def stored(self, p, place, e):
        """The places of an event's blocks in a prompt, of those that are its own. place, by hash, learns them."""
        told = []
        if e.parent_block_hash is not None:
            at = place.get(e.parent_block_hash, (0, None))[1]
        else:
            extra = (getattr(e, "extra_keys", None) or [None])[0] or ()
            salted = p.salt in extra if p.salt else len(extra) <= bool(p.lora)
            salted = salted if hasattr(e, "extra_keys") else (getattr(e, "cache_salt", None) or "") == p.salt
            at = 0 if (e.lora_name or "" if hasattr(e, "lora_name") else "") == p.lora and salted else None
        for i, h in enumerate(e.block_hashes):
            ids = list(e.token_ids[i * e.block_size : (i + 1) * e.block_size])
            if at is None or not ids or ids != p.tokens[at : at + len(ids)]:
                break
            place[h] = (at, at + len(ids))
            told.append(at)
            at += len(ids)
        return told


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["vllm", "sglang"], required=True)
    ap.add_argument("--module", required=True)
    ap.add_argument("--endpoint", required=True)
    ap.add_argument("--replay", default="")
    ap.add_argument("--seed", type=int, required=True)
    ap.add_argument("--blocks", type=int, default=700)
    ap.add_argument("--block-size", type=int, default=16)
    ap.add_argument("--window", type=int, default=0)
    ap.add_argument("--states", action="store_true")
    ap.add_argument("--retention", type=int, default=-1)
    ap.add_argument("--loras", type=float, default=0)
    ap.add_argument("--salts", type=float, default=0)
    ap.add_argument("--reports", type=float, default=0)
    ap.add_argument("--index-block", type=int, default=16)
    ap.add_argument("--short-chunks", action="store_true")
    o = ap.parse_args()
    logging.disable(logging.CRITICAL)
    gc.set_threshold(200_000, 10, 100)  # what is published is kept: by default a third of the time goes into looking at it again
    rng = random.Random(o.seed)
    cache = VLLM(o) if o.engine == "vllm" else SGLang(o)
    pub = publisher(cache.events, o.endpoint, o.replay, "kv", 0, 10_000)
    engine, record, published = Engine(rng, cache, Load(rng, o), 6, [7] if o.short_chunks else []), Record(), 0
    p = None

    def publish():
        nonlocal published
        events = cache.take()
        if events:
            record.add(published, events)
            pub.publish(cache.events.KVEventBatch(ts=time.time(), events=events))
            published += 1

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if json.loads(line)["op"] == "history":
            print(json.dumps({"lines": record.of(p)}), flush=True)
            continue
        for _ in range(rng.randrange(1, 8)):
            engine.play()
            if rng.random() < 0.7:
                publish()  # else the next step's events come with these, as of a step with several requests
        p, r = engine.arrive()
        publish()
        tokens = base64.b64encode(array.array("I", p.tokens).tobytes()).decode()
        print(json.dumps({"tokens": tokens, "lora": p.lora, "salt": p.salt, **cache.found(r), "published": published}), flush=True)


main()
