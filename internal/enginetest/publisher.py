"""Publish KV-cache events by the code of an engine, as told on stdin.

  publisher.py --engine vllm --module DIR/vllm-0.33.0 --endpoint 'tcp://*:5557' --replay 'tcp://*:5558'
  publisher.py --engine plain --endpoint 'tcp://*:5557' ...

"vllm" and "sglang" run the ZmqEventPublisher, the structs and the encoder of the release, whose one module is
loaded with everything that it imports of its engine replaced by stand-ins. "plain" is a PUB and a ROUTER of
libzmq with what engines do not have: CURVE, and faults.

Each line of stdin is a command in JSON; each but "publish" is answered by a line of JSON:

  {"op": "publish", "events": [{"type": "BlockStored", "block_hashes": [1], ...}, ...], "ts": 1.5}
  {"op": "generate", "messages": 1000, "blocks": 16, "block_size": 16, "rate": 0}    the load of benchmarks
  {"op": "flush"}                                 answered when all is on the wire: {"next": <sequence>}
  {"op": "cut", "after": 100, "end": true}        from now on each replay loses what comes after that many
                                                  messages, and its end if so; after -1: none is cut
  {"op": "burn"}                                  a batch that cannot be encoded, which takes a number

Fields that a release does not have are left out; those that it requires are null. Values {"hex": "..."} are bytes.
"""
class Cutting:
    """A ROUTER that loses what comes after some messages of each replay, as one at its high-water mark does."""

    after, end = -1, False

    def __init__(self, socket, endseq):
        self.socket, self.endseq, self.sent = socket, endseq, 0

    def __getattr__(self, name):
        return getattr(self.socket, name)

    def recv_multipart(self, *a, **k):
        self.sent = 0
        return self.socket.recv_multipart(*a, **k)

    def send_multipart(self, frames, *a, **k):
        frames = list(frames)
        last = frames[-2] == self.endseq
        self.sent += 1
        if Cutting.after >= 0 and self.sent > Cutting.after and (not last or Cutting.end):
            return
        self.socket.send_multipart(frames, *a, **k)


ENDSEQ = b"\xff" * 8


class Real:
    def __init__(self, a):
        self.K = load(a.engine, a.module)
        self.pub = publisher(self.K, a.endpoint, a.replay, a.topic, a.rank, a.buffer_steps)
        if getattr(self.pub, "_replay", None) is not None:
            self.pub._replay = Cutting(self.pub._replay, ENDSEQ)
        self.n = 0

    def event(self, e):
        e = dict(e)
        cls = getattr(self.K, e.pop("type"))
        fields = cls.__struct_fields__
        required = len(fields) - len(cls.__struct_defaults__)
        kw = {}
        for i, f in enumerate(fields):
            if f in e:
                kw[f] = e[f]
            elif i < required:
                kw[f] = None
        return cls(**kw)

    def publish(self, ts, events, rank):
        self.pub.publish(self.K.KVEventBatch(ts=ts, events=[self.event(e) for e in events]))
        self.n += 1

    def burn(self):
        self.pub.publish(self.K.KVEventBatch(ts=object(), events=[]))
        self.n += 1

    def flush(self):
        # The publisher's thread says so when a message has been sent, but not when one could not be.
        while not self.pub._event_queue.empty():
            time.sleep(0.001)
        time.sleep(0.02)


class Plain:
    """What engines' publishers do, with libzmq alone."""

    def __init__(self, a):
        ctx = zmq.Context.instance()
        self.topic, self.old = a.topic.encode(), a.old_replay
        self.pub, self.router = ctx.socket(zmq.PUB), None
        sockets = [(self.pub, a.endpoint)]
        if a.replay:
            router = ctx.socket(zmq.ROUTER)
            router.sndhwm = 0
            sockets.append((router, a.replay))
            self.router = Cutting(router, ENDSEQ)
        self.pub.sndhwm = HWM
        for s, endpoint in sockets:
            if a.curve_secret:
                s.curve_server = True
                s.curve_secretkey = a.curve_secret.encode()
            if "*" in endpoint or endpoint.startswith("ipc:"):
                s.bind(endpoint)
            else:
                s.connect(endpoint)
        self.encode = msgspec.msgpack.Encoder().encode
        self.queue, self.buffer, self.limit, self.n = queue.Queue(), [], a.buffer_steps, 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            if self.router and self.router.poll(0):
                ident, _, start = self.router.recv_multipart()
                start = int.from_bytes(start, "big")
                for seq, payload in self.buffer:
                    if seq >= start:
                        self.router.send_multipart([ident, b""] + [self.topic] * (not self.old) + [seq.to_bytes(8, "big"), payload])
                self.router.send_multipart([ident, b""] + [b""] * (not self.old) + [ENDSEQ, b""])
            try:
                payload = self.queue.get(timeout=0.05)
            except queue.Empty:
                continue
            seq = self.n
            self.n += 1
            if payload is not None:
                self.pub.send_multipart([self.topic, seq.to_bytes(8, "big"), payload])
                self.buffer.append((seq, payload))
                del self.buffer[: -self.limit]
            self.queue.task_done()

    def publish(self, ts, events, rank):
        self.queue.put(self.encode([ts, events, rank]))

    def burn(self):
        self.queue.put(None)

    def flush(self):
        self.queue.join()


def generate(pub, c):
    """Prompts of four messages each; of each prompt a message is the child of the one before."""
    blocks, size = c.get("blocks", 16), c.get("block_size", 16)
    n = blocks * size
    tokens = [[(i * 7919 + k * 131) % 150000 for k in range(n)] for i in range(256)]
    begin, parent = time.time(), None
    for i in range(c["messages"]):
        hashes = [((i * blocks + j + 1) * 0x9E3779B97F4A7C15) & ((1 << 63) - 1) for j in range(blocks)]
        pub.publish(time.time(), [{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent if i % 4 else None,
                                   "token_ids": tokens[(i * 37 + i // 256) % 256], "block_size": size, "lora_id": None, "medium": "GPU"}], 0)
        parent = hashes[-1]
        if c.get("rate"):
            ahead = begin + (i + 1) / c["rate"] - time.time()
            if ahead > 0:
                time.sleep(ahead)
    pub.flush()
    return {"seconds": time.time() - begin}


def bytes_of(x):
    if isinstance(x, dict) and "hex" in x:
        return bytes.fromhex(x["hex"])
    if isinstance(x, list):
        return [bytes_of(v) for v in x]
    if isinstance(x, dict):
        return {k: bytes_of(v) for k, v in x.items()}
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["vllm", "sglang", "plain"], required=True)
    ap.add_argument("--module")
    ap.add_argument("--endpoint", required=True)
    ap.add_argument("--replay", default="")
    ap.add_argument("--topic", default="")
    ap.add_argument("--rank", type=int, default=0)
    ap.add_argument("--buffer-steps", type=int, default=10_000)
    ap.add_argument("--old-replay", action="store_true")
    ap.add_argument("--curve-secret", default="")
    a = ap.parse_args()
    # An engine's complaints about a batch that it cannot encode are expected.
    logging.disable(logging.CRITICAL)
    pub = Plain(a) if a.engine == "plain" else Real(a)

    def answer(**kw):
        print(json.dumps(kw), flush=True)

    answer(ready=True, zmq=zmq.zmq_version())
    for line in sys.stdin:
        c = json.loads(line)
        op = c["op"]
        if op == "publish":
            pub.publish(c.get("ts", time.time()), bytes_of(c["events"]), a.rank)
        elif op == "burn":
            pub.burn()
            answer(burnt=True)
        elif op == "generate":
            answer(**generate(pub, c))
        elif op == "flush":
            pub.flush()
            answer(next=pub.n)
        elif op == "cut":
            Cutting.after, Cutting.end = c["after"], c.get("end", False)
            answer(cut=True)
        else:
            answer(error="unknown op " + op)


main()
