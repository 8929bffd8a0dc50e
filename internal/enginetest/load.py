"""Load modules of an engine as released, with everything that they import and that is not there replaced.

The scripts beside this one begin with it.
"""
import argparse, array, base64, dataclasses, gc, hashlib, importlib, importlib.abc, importlib.machinery, inspect, itertools, json, logging, os, pickle, queue, random, sys, threading, time, types

import msgspec
import zmq


class Any_(type):
    """The type of stand-ins: it has every attribute, and is one to annotate with."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Any_(name, (), {})
        setattr(cls, name, made)  # as in StandIn
        return made

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Any_(name, (), {"__init__": lambda self, *a, **k: None})
        setattr(self, name, made)  # engines look some up for each block
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are there as files, and stands in for all others of the engine and what it is built on."""

    foundations = ("psutil", "torch", "numpy", "cbor2")

    def __init__(self, root, package, more):
        self.root, self.packages, self.more = root, (package, *self.foundations), more

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def file(self, name):
        return os.path.join(self.root, *name.split(".")) + ".py"

    def create_module(self, spec):
        if os.path.exists(self.file(spec.name)):
            m = types.ModuleType(spec.name)
            m.__file__, m.__path__ = self.file(spec.name), []
            return m
        return StandIn(spec.name)

    def exec_module(self, m):
        if os.path.exists(self.file(m.__name__)):
            with open(m.__file__) as f:
                exec(compile(f.read(), m.__file__, "exec"), m.__dict__)
        for k, v in self.more.get(m.__name__, {}).items():
            setattr(m, k, v)


def load(engine, root, more=()):
    """The module of the engine that publishes. more are names to set in modules, by module."""
    more = dict(more)
    if engine == "vllm":
        more["vllm.logger"] = {"init_logger": logging.getLogger}
        name = "vllm.distributed.kv_events"
    else:
        name = "sglang.srt.disaggregation.kv_events"
    sys.meta_path.insert(0, Finder(root, engine, more))
    return importlib.import_module(name)


HWM = 100_000  # how many messages wait for a slow reader, as engines have it


def publisher(events, endpoint, replay, topic, rank, buffer_steps):
    """The engine's own publisher, of the module that load returned."""
    kw = dict(endpoint=endpoint, replay_endpoint=replay or None, buffer_steps=buffer_steps, hwm=HWM, topic=topic)
    params = inspect.signature(events.ZmqEventPublisher.__init__).parameters
    for name in ("data_parallel_rank", "attn_dp_rank"):
        if name in params:
            kw[name] = rank
    return events.ZmqEventPublisher(**kw)
