"""Runs LMCache's own, unchanged code that tells a controller or a coordinator what is held, and obeys
commands: a JSON object a line in, one out. LMCache is the unpacked wheel that PYTHONPATH names.

What that code imports and does not need for this (torch, numba, tracing, ...) is stood in for by modules that
answer to any name. Nothing of LMCache itself is replaced but its C extensions, where they are not called.
"""
import asyncio
import enum
import importlib.abc
import importlib.machinery
import json
import math
import pathlib
import re
import sys
import threading
import time
import types


class Anything:
    """Can be called, entered, iterated and asked for any attribute. As a decorator it does nothing."""

    def __init__(self, *a, **k):
        pass

    def __call__(self, *a, **k):
        return a[0] if len(a) == 1 and callable(a[0]) and not k else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False

    def __iter__(self):
        return iter(())

    def __or__(self, other):
        return self

    __ror__ = __or__


class Names(type):
    """A class that has every name: LMCache asks its extensions for enumerations, whose members are names then."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.__name__ + "." + name


class StandIn(types.ModuleType):
    """A module that has every name: those with a capital are classes."""

    def __getattr__(self, name):
        if name.startswith("__") or self.__name__ == "torch" and name in ("fp8", "musa", "mlu", "rbln", "xpu", "hpu", "npu", "mps"):
            raise AttributeError(name)
        if name[0].isupper():
            made = Names(name, (Anything,), {})
            setattr(self, name, made)
            return made
        return Anything()


KIND = json.loads(sys.argv[1])["kind"]
MISSING = (
    "numba", "nvtx", "aiohttp", "aiofile", "aiofiles", "cpuinfo", "cryptography", "requests", "transformers",
    "xxhash", "safetensors", "cbor2", "torchac_cuda", "infinistore", "uvicorn", "fastapi", "starlette",
    "lmcache.c_ops", "lmcache.cuda_ops", "lmcache.device_ops",
)
if "resp" not in KIND and "engine" not in KIND:  # these run the native modules themselves
    MISSING += ("lmcache.lmcache_native",)
if "engine" not in KIND:  # Debian's torch is the engine's
    MISSING += ("torch", "numpy")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "lmcache.v1.memory_management" and not hasattr(sys.modules["lmcache"], "device_ops"):
            sys.modules["lmcache"].device_ops = StandIn("lmcache.device_ops")
        if any(name == m or name.startswith(m + ".") for m in MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        if module.__name__ == "torch":
            fill_torch(module)
        if module.__name__ == "lmcache.lmcache_native":
            fill_native(module)


def fill_native(m):
    """The enumerations of LMCache's native module, as the wheel's own type stubs have them."""
    for d in sys.path:
        stubs = pathlib.Path(d, "lmcache", "lmcache_native.pyi")
        if not stubs.exists():
            continue
        for c in re.finditer(r"class (\w+)\(IntEnum\):\n((?:    .*\n|\n)+)", stubs.read_text()):
            values, n = {}, 0
            for name, value in re.findall(r"^    ([A-Z][A-Z0-9_]*)\s*(?:=\s*(-?\d+)|:\s*int|:.*)?$", c.group(2), re.M):
                n = int(value) if value else n
                values[name], n = n, n + 1
            if values:
                setattr(m, c.group(1), enum.IntEnum(c.group(1), values))


class DType:
    def __init__(self, name, size):
        self.name, self.itemsize, self.is_floating_point = name, size, "float" in name

    def __repr__(self):
        return "torch." + self.name


def fill_torch(t):
    t.__version__ = "2.7.0"
    for name, size in (("half", 2), ("float16", 2), ("bfloat16", 2), ("float", 4), ("float32", 4), ("double", 8), ("float64", 8), ("uint8", 1), ("int8", 1),
                       ("int16", 2), ("int32", 4), ("int", 4), ("int64", 8), ("long", 8), ("bool", 1), ("uint16", 2), ("uint32", 4), ("uint64", 8),
                       ("short", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1), ("float8_e4m3fnuz", 1), ("float8_e5m2fnuz", 1)):
        setattr(t, name, DType(name, size))
    t.Size = type("Size", (tuple,), {"numel": lambda s: math.prod(s)})
    t.device = type("device", (), {"__init__": lambda s, t="cpu", index=None: setattr(s, "type", str(t)), "__str__": lambda s: s.type})
    t.cuda = StandIn("torch.cuda")
    t.cuda.is_available = lambda: False
    t.cuda.device_count = lambda: 0
    t.is_tensor = lambda x: False


def mend_torch():
    """Debian's torch 1.13, which has no CUDA, with the names of later ones that LMCache mentions on its way."""
    import ctypes
    import gc

    import torch
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint16", "uint32", "uint64"):
        if not hasattr(torch, name):
            setattr(torch, name, DType(name, 1))
    fields = gc.get_referents(torch.dtype.__dict__)[0]
    fields.setdefault("itemsize", property(lambda t: torch.empty(0, dtype=t).element_size()))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.dtype))
    torch.cuda.current_device, torch.cuda.Stream, torch.cuda.Event = lambda: 0, Anything, Anything
    torch.cuda.synchronize = torch.cuda.set_device = lambda *a: None
    torch.cuda.stream = torch.cuda.current_stream = lambda *a: Anything()
    empty = torch.empty
    torch.empty = lambda *a, pin_memory=False, **k: empty(*a, **k)  # pinning is CUDA's


sys.meta_path.insert(0, Finder())
if "engine" in KIND:
    mend_torch()


def metadata(worker, world, model="m", shape=(1, 2, 256, 1, 2)):
    import inspect

    import torch
    try:
        from lmcache.v1.metadata import LMCacheMetadata as M
    except ImportError:
        from lmcache.config import LMCacheEngineMetadata as M
    v = dict(model_name=model, world_size=world, local_world_size=world, worker_id=worker, local_worker_id=worker, fmt="vllm", kv_dtype=torch.bfloat16,
             kv_shape=shape, role="worker", engine_id="e0", chunk_size=256, use_mla=False)
    return M(**{k: x for k, x in v.items() if k in inspect.signature(M).parameters})


class Old:
    """LMCacheWorker of 0.3.1: everything over PUSH, keys as text."""

    def __init__(self, a):
        from lmcache.v1.cache_controller import message
        from lmcache.v1.cache_controller.worker import LMCacheWorker
        from lmcache.v1.config import LMCacheEngineConfig
        self.m, self.a, self.held = message, a, set()
        config = LMCacheEngineConfig.from_defaults(remote_url=None, enable_controller=True, lmcache_instance_id=a["instance"], controller_url=a["pull"], lmcache_worker_port=a["port"])
        self.w = LMCacheWorker(config, metadata(a["worker"], a["world"]), types.SimpleNamespace(storage_manager=None))

    def admit(self, keys):
        self.held.update(keys)
        for k in keys:
            self.w.put_msg(self.m.KVAdmitMsg(self.a["instance"], self.a["worker"], k, "cpu"))

    def evict(self, keys):
        self.held.difference_update(keys)
        for k in keys:
            self.w.put_msg(self.m.KVEvictMsg(self.a["instance"], self.a["worker"], k, "cpu"))

    def deregister(self, keys):
        self.w.deregister()
        self.held.clear()

    def holds(self):
        return sorted(self.held)


class New:
    """LMCacheWorker of 0.5.6 with its BatchedMessageSender and FullSyncSender, over a set of keys."""

    def __init__(self, a):
        from lmcache.v1.cache_controller import message
        from lmcache.v1.cache_controller.worker import LMCacheWorker
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.storage_backend.batched_message_sender import BatchedMessageSender
        self.m, self.held = message, {}
        config = LMCacheEngineConfig.from_defaults(
            remote_url=None, enable_controller=True, lmcache_instance_id=a["instance"], controller_pull_url=a["pull"], controller_reply_url=a["reply"],
            lmcache_worker_ports=[a["port"]] * a["world"], lmcache_worker_heartbeat_delay_time=0, lmcache_worker_heartbeat_time=a["heartbeat"] or None,
            extra_config={"full_sync_startup_delay_s": 0.0, "full_sync_status_poll_interval_s": 0.1, "full_sync_batch_size": 7})

        class Backend:
            def get_keys(s):
                return [types.SimpleNamespace(chunk_hash=k) for k in list(self.held)]

            def __str__(s):
                return "LocalCPUBackend"
        engine = types.SimpleNamespace(storage_manager=types.SimpleNamespace(local_cpu_backend=Backend()), freeze=lambda b: None)
        md = metadata(a["worker"], a["world"])
        self.w = LMCacheWorker(config, md, engine)
        self.s = BatchedMessageSender(md, config, "LocalCPUBackend", self.w)

    def tell(self, keys, kind, put):
        for k in keys:
            put(k)
            self.s.add_kv_op(kind, k)
        self.s.flush()

    def admit(self, keys):
        self.tell(keys, self.m.OpType.ADMIT, lambda k: self.held.setdefault(k))

    def evict(self, keys):
        self.tell(keys, self.m.OpType.EVICT, lambda k: self.held.pop(k, None))

    def lose(self, keys):
        """Evicts, and the messages are lost on the way: their numbers are used up."""
        for k in keys:
            self.held.pop(k, None)
            self.s._get_next_sequence_number()

    def deregister(self, keys):
        self.w.deregister()
        self.held.clear()

    def holds(self):
        return sorted(self.held)


class MP:
    """CacheEventSubscriber of 0.5.6 with its HTTP sink, on LMCache's event bus, and what keeps a server registered."""

    def __init__(self, a):
        import inspect

        from lmcache.v1.distributed.api import L1BackendType, ObjectKey
        from lmcache.v1.distributed.internal_api import L1ObjectMeta
        from lmcache.v1.mp_coordinator.cache_events import CacheEventSubscriber, HttpCacheEventSink
        from lmcache.v1.mp_observability import event_bus
        from lmcache.v1.mp_observability.event import Event, EventType
        self.Event, self.EventType, self.a, self.held = Event, EventType, a, set()
        self.key = lambda h: ObjectKey(bytes.fromhex(h), a["model"], ObjectKey.ComputeKVRank(a["world"], a["worker"], a["world"], a["worker"]))
        backend = list(L1BackendType)[0]
        fields = {f: 1 if f == "size_bytes" else backend for f in inspect.signature(L1ObjectMeta).parameters if f in ("size_bytes", "backend")}
        self.meta = lambda keys: [L1ObjectMeta(**fields) for _ in keys]
        self.bus = event_bus.EventBus(event_bus.EventBusConfig())
        self.sub = CacheEventSubscriber(HttpCacheEventSink(a["coordinator"], timeout=30), a["instance"], a["incarnation"], flush_interval=0.0)
        self.bus.register_subscriber(self.sub)
        self.bus.start()
        if a["heartbeat"]:
            threading.Thread(target=lambda: asyncio.run(self.register()), daemon=True).start()

    async def register(self):
        import httpx

        from lmcache.v1.mp_coordinator.registrar import keep_registered
        async with httpx.AsyncClient() as client:
            await keep_registered(client, self.a["coordinator"], http_port=self.a["port"], instance_id=self.a["instance"], advertise_ip="127.0.0.1",
                                  heartbeat_interval=self.a["heartbeat"], on_registered=lambda: None)

    def publish(self, kind, **metadata):
        self.bus.publish(self.Event(event_type=kind, session_id="s", metadata=metadata))

    def admit(self, keys):
        self.held.update(keys)
        self.publish(self.EventType.L1_WRITE_FINISHED, keys=[self.key(k) for k in keys], meta=self.meta(keys))

    def evict(self, keys):
        self.held.difference_update(keys)
        self.publish(self.EventType.L1_KEYS_EVICTED, keys=[self.key(k) for k in keys], meta=self.meta(keys))

    def share(self, keys):
        self.publish(self.EventType.L2_KEYS_STORED, keys=[self.key(k) for k in keys], sizes=[1] * len(keys), backend="resp", shared=True)

    def lose(self, keys):
        self.held.difference_update(keys)
        self.sub._seq += 1

    def holds(self):
        return sorted(self.held)


def chunks(a, config):
    """The keys of the prompt's chunks, as LMCache's own token database makes them."""
    from lmcache.v1 import token_database
    if a["kind"].endswith("0.3.6") and sys.version_info < (3, 12):
        # LMCache hashes (before, tokens, None), and None's hash is an address before Python 3.12: 3.12's in its place.
        none = type("None312", (), {"__hash__": lambda s: 0xFCA86420})()
        token_database.hash = lambda v: hash(tuple(none if x is None else x for x in v))
    db = token_database.ChunkedTokenDatabase(config, metadata(a["worker"], a["world"], a["model"]))
    return [k for _, _, k in db.process_tokens(a["prompt"])]


class Lookup:
    """RedisLookupServer of 0.3.1 and 0.3.6, as an engine with enable_p2p calls it. Keys are numbers of the prompt's chunks."""

    def __init__(self, a):
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.lookup_server.redis_server import RedisLookupServer
        config = LMCacheEngineConfig.from_defaults(remote_url=None, lookup_url=a["redis"], distributed_url=a["address"], enable_p2p=True)
        self.keys, self.held = chunks(a, config), set()
        self.s = RedisLookupServer(config)

    def admit(self, keys):
        self.held.update(keys)
        self.s.batched_insert([self.keys[i] for i in keys])

    def evict(self, keys):
        self.held.difference_update(keys)
        self.s.batched_remove([self.keys[i] for i in keys])

    def holds(self):
        """The keys of what it has stored, and who LMCache itself then takes for the owner."""
        return [[self.keys[i].to_string(), ":".join(map(str, self.s.lookup(self.keys[i]) or ()))] for i in sorted(self.held)]


class Tensors:
    """A chunk's memory object: only its bytes are of interest to what sends them."""

    def __init__(self):
        self.byte_array = memoryview(bytearray(b"\x5a" * 2048))


class Remote:
    """RESPConnector of 0.5.6, which is what remote_url resp:// is, and its native client."""

    def __init__(self, a):
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.storage_backend.connector.redis_connector import RESPConnector
        host, port = a["redis"].split(":")
        config = LMCacheEngineConfig.from_defaults(remote_url="resp://" + a["redis"], extra_config={"save_chunk_meta": False})
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.keys = chunks(a, config)
        cpu = types.SimpleNamespace(config=config, metadata=metadata(a["worker"], a["world"], a["model"]))
        self.c = RESPConnector(host, int(port), self.loop, cpu, num_threads=2)

    def run(self, what):
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(30)

    def admit(self, keys):
        self.run(self.c.batched_put([self.keys[i] for i in keys], [Tensors() for _ in keys]))

    def holds(self):
        # exists_sync waits for ever if the answer comes before it has noted that it waits for one.
        return [k.to_string() for k in self.keys if self.run(self.c.exists(k))]


class Adapter:
    """MP mode's second level "resp" of 0.5.6, with the same native client."""

    def __init__(self, a):
        from lmcache.v1.distributed.api import ObjectKey
        from lmcache.v1.distributed.l2_adapters import native_connector_l2_adapter, resp_l2_adapter
        from lmcache.v1.multiprocess.token_hasher import TokenHasher
        host, port = a["redis"].split(":")
        self.name = native_connector_l2_adapter._object_key_to_string
        rank = ObjectKey.ComputeKVRank(a["world"], a["worker"], a["world"], a["worker"])
        self.keys = [ObjectKey(h, a["model"], rank) for h in TokenHasher(256, "blake3").compute_chunk_hashes(a["prompt"])]
        self.c = resp_l2_adapter._create_resp_l2_adapter(resp_l2_adapter.RESPL2AdapterConfig(host, int(port), 2))

    def wait(self, ask):
        end = time.monotonic() + 30
        while (got := ask()) is None:
            if time.monotonic() > end:
                raise TimeoutError("the second level does not answer")
            time.sleep(0.005)
        return got

    def admit(self, keys):
        task = self.c.submit_store_task([self.keys[i] for i in keys], [Tensors() for _ in keys])
        self.wait(lambda: self.c.pop_completed_store_tasks().get(task))

    def evict(self, keys):
        self.c.delete([self.keys[i] for i in keys])

    def holds(self):
        task = self.c.submit_lookup_and_lock_task(self.keys, {})
        found = self.wait(lambda: self.c.query_lookup_and_lock_result(task))
        held = [k for i, k in enumerate(self.keys) if found.test(i)]
        self.c.submit_unlock(held)
        return [self.name(k) for k in held]


class Engine:
    """The whole LMCacheEngine of 0.5.6 without a GPU: CPU memory, remote store redis://, controller, KV events. Keys are
    the first of a row of tokens and how many."""

    def __init__(self, a):
        from lmcache.v1.cache_engine import LMCacheEngineBuilder
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=256, local_cpu=True, max_local_cpu_size=0.02, remote_url="redis://" + a["redis"], remote_serde="naive", lmcache_instance_id=a["instance"],
            enable_controller=True, controller_pull_url=a["pull"], controller_reply_url=a["reply"], lmcache_worker_ports=[a["port"]],
            lmcache_worker_heartbeat_delay_time=0, lmcache_worker_heartbeat_time=a["heartbeat"], enable_kv_events=True,
            extra_config={"full_sync_startup_delay_s": 0.0, "full_sync_status_poll_interval_s": 0.1})
        md = metadata(a["worker"], a["world"], a["model"], (1, 2, 256, 8, 64))
        self.e = LMCacheEngineBuilder.get_or_create("e0", config, md, MockGPUConnector(md.kv_shape), lambda t, s: None, lambda o, s: o)
        self.e.post_init()
        self.cpu = self.e.storage_manager.local_cpu_backend

    def admit(self, keys):
        end = time.monotonic() + 30
        while self.e.is_frozen() and time.monotonic() < end:  # during a full sync it stores nothing
            time.sleep(0.005)
        self.e.store(tokens=list(range(keys[0], keys[0] + keys[1])))

    def evict(self, keys):
        self.e.clear(tokens=list(range(keys[0], keys[0] + keys[1])), locations=["LocalCPUBackend"])

    def lose(self, keys):
        """Evicts, and the messages are lost on the way: their numbers are used up."""
        sender, self.cpu.batched_msg_sender = self.cpu.batched_msg_sender, None
        self.evict(keys)
        self.cpu.batched_msg_sender = sender
        for _ in range(keys[1] // 256):
            sender._get_next_sequence_number()

    def clear(self, keys):
        self.e.clear(locations=["LocalCPUBackend"])

    def events(self, keys):
        self.told = [{k: getattr(v, k) for k in ("block_hashes", "parent_block_hash", "token_ids", "block_size", "medium")} for v in self.e.get_kv_events()]

    def holds(self):
        if told := self.__dict__.pop("told", None):
            return told
        return [k.chunk_hash for k in self.cpu.get_keys()]


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # LMCache writes its log to either
    a = json.loads(sys.argv[1])
    client = {"0.3.1": Old, "0.5.6": New, "mp-0.5.6": MP, "lookup-0.3.1": Lookup, "lookup-0.3.6": Lookup, "resp-0.5.6": Remote, "mp-resp-0.5.6": Adapter, "engine-0.5.6": Engine}[a["kind"]](a)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        c = json.loads(line)
        if c["do"] != "holds":
            getattr(client, c["do"])(c["keys"])
        print(json.dumps({"holds": client.holds()}), file=out, flush=True)


main()
