"""Run vLLM's own cache step by step, and say which bytes it publishes.

  script.py --engine vllm --module DIR/vllm-0.33.0 --blocks 8 --block-size 16 --window 0

Each line of stdin is a step in JSON, answered by {"payloads": ["<hex>"]}: the message that its events are published in, with
the time 0, or none. With "more": true they are of the next step's message.

  {"op": "new"}                                                        an empty cache
  {"op": "begin", "name": "a", "tokens": [1], "n": 16, "report": true} a request comes, and up to n of its tokens are computed
  {"op": "go", "name": "a", "n": 16}                                   up to n more are
  {"op": "end", "name": "a"}                                           it ends
  {"op": "fill", "removed": 2}                                         requests of one token come until so many blocks are evicted,
                                                                       and end
  {"op": "reset"}                                                      the cache is cleared
  {"op": "find", "tokens": [1]}                                        {"held": 0}: what the cache finds for a request that comes now
"""


class Cache:
    def __init__(self, o):
        self.vllm, self.requests, self.number = VLLM(o), {}, 0

    def request(self, tokens, report=False):
        self.number += 1
        return self.vllm.request(types.SimpleNamespace(number=self.number, tokens=tokens, lora="", salt="", report=report))

    def must(self, done, what):
        if not done:
            raise RuntimeError(what + ": the cache has no room")

    def do(self, c):
        """Do a step and return its events."""
        op, events = c["op"], []
        if op == "begin":
            r = self.requests[c["name"]] = self.request(c["tokens"], c.get("report", False))
            self.must(self.vllm.begin(r, c["n"]), c["name"])
        elif op == "go":
            self.must(self.vllm.goes_on(self.requests[c["name"]], c["n"]), c["name"])
        elif op == "end":
            self.vllm.end(self.requests.pop(c["name"]))
        elif op == "reset":
            self.vllm.reset()
        elif op == "fill":
            events = self.fill(c["removed"])
        return events + self.vllm.take()

    def fill(self, removed):
        events, running = [], []
        while sum(type(e).__name__ == "BlockRemoved" for e in events) < removed:
            running.append(self.request([1]))
            self.must(self.vllm.begin(running[-1], 1), "fill")
            events += self.vllm.take()
        for r in running:
            self.vllm.end(r)
        return events


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["vllm"], required=True)
    ap.add_argument("--module", required=True)
    ap.add_argument("--blocks", type=int, required=True)
    ap.add_argument("--block-size", type=int, required=True)
    ap.add_argument("--window", type=int, default=0)
    o = ap.parse_args()
    o.index_block, o.states, o.retention = o.block_size, False, -1
    logging.disable(logging.CRITICAL)
    cache, events = Cache(o), []
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        c = json.loads(line)
        if c["op"] == "new":
            sys.meta_path.pop(0)
            cache = Cache(o)
        if c["op"] == "find":
            print(json.dumps(cache.vllm.found(cache.request(c["tokens"]))), flush=True)
            continue
        events += cache.do(c)
        if c.get("more"):
            print(json.dumps({"payloads": []}), flush=True)
            continue
        batch = cache.vllm.events.KVEventBatch(ts=0.0, events=events)
        print(json.dumps({"payloads": [msgspec.msgpack.encode(batch).hex()] if events else []}), flush=True)
        events = []


main()
