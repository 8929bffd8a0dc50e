"""Every method against a real server."""

import asyncio
import inspect
import os

import pytest

import kvatlas


def test_score(client: kvatlas.Client) -> None:
    client.register_pod(kvatlas.Pod("a", model="m", ranks=2, labels={"zone": "1"}, lease_s=60.5))
    assert client.add_blocks("m", "a", tokens=range(128), rank=1) == 2
    assert client.add_blocks("m", "b/c", tokens=range(64), tier="cpu") == 1
    assert client.pod("a") == kvatlas.Pod("a", model="m", ranks=2, labels={"zone": "1"}, lease_s=60.5)
    assert [p.name for p in client.pods()] == ["a", "b/c"]

    first = client.score("m", tokens=range(130), pods=["a", "b/c", "none"], top=1)
    assert (len(first.scores), first.left_out) == (1, 2)
    s = client.score("m", tokens=range(130), pods=["a", "b/c", "none"], explain=True)
    assert s.best == "a"
    assert s.scores == {"a": 2.0, "b/c": 0.8, "none": 0.0}
    assert s.ranking() == ["a", "b/c", "none"]
    assert s.matched["a"] == kvatlas.Match(blocks=2, tokens=128, tiers={"gpu": 2}, ranks={1: 2}, reusable=128)
    assert (s.blocks.total, s.blocks.size) == (2, 64)
    assert s.tokens == kvatlas.TokenCount(total=130, source="tokens", exact=True)
    assert s.degraded is None and s.explain is not None

    keys = s.explain["block_keys"]
    assert client.score("m", block_keys=keys).scores == {"a": 2.0, "b/c": 0.8}
    assert (
        client.score(body={"model": "m", "prompt": list(range(130)), "max_tokens": 5}, strategy="coverage").best == "a"
    )
    assert client.score("m", tokens=[1]).best is None

    assert client.remove_blocks("m", "a", block_keys=keys[1:], rank=1) == 1
    assert client.score("m", tokens=range(130)).scores["a"] == 1.0
    client.clear_blocks("m", "a")
    assert client.score("m", tokens=range(130)).scores == {"b/c": 0.8}
    client.delete_pod("b/c")
    assert client.score("m", tokens=range(130)).best is None
    assert "m" in [m.name for m in client.models()]


def test_tokens_are_exact(client: kvatlas.Client) -> None:
    tokens = [0, 1, 2**31, 2**32 - 1] * 16
    client.add_blocks("m", "a", tokens=tokens)
    assert client.score("m", tokens=tuple(tokens)).best == "a"
    assert client.score("m", body={"prompt": tokens}).best == "a"
    for wrong in ([-1], [2**32]):
        with pytest.raises(ValueError):
            client.score("m", tokens=wrong)


def test_route(client: kvatlas.Client) -> None:
    client.register_pod(kvatlas.Pod("a", model="m", labels={"zone": "1"}))
    client.register_pod(kvatlas.Pod("b", model="m", address="http://b:1", ranks=2))
    client.add_blocks("m", "b", tokens=range(64), rank=1)
    got = client.route("m", tokens=range(100), reserve=True, request_id="r/1 ü", expected_output_tokens=8, explain=True)
    assert (got.pod, got.rank, got.address, got.policy) == ("b", 1, "http://b:1", "eta")
    assert (got.overlap.tokens, got.overlap.tiers, got.reservation, got.again) == (64, {"gpu": 64}, "r/1 ü", False)
    assert len(got.fallbacks) == 2 and len(got.costs) == 3 and got.costs[0].terms["prefill_ms"] > 0
    assert client.route("m", tokens=range(100), reserve=True, request_id="r/1 ü").again
    load = client.loads("m")["m"][2]
    assert (load.pod, load.rank, load.requests, load.prefill_tokens) == ("b", 1, 1, 36)
    assert client.push_load("b", rank=1, running=1, waiting=0, kv_usage=0.25, kv_tokens=6400) == 10
    with pytest.raises(kvatlas.APIError):
        client.push_load("b", rank=2, running=1, waiting=0)
    done = client.done("m", "r/1 ü", cached_tokens=64)
    assert done == kvatlas.Report(known=True, pod="b", rank=1, first=True, predicted_tokens=64)
    assert client.output("m", "r/1 ü", 3).known
    assert client.end("m", "r/1 ü").known
    assert not client.end("m", "r/1 ü").known
    client.route("m", tokens=range(100), reserve=True, request_id="r/2")
    assert client.end("m", "r/2", cached_tokens=64).first
    assert all(load.requests == 0 for load in client.loads()["m"])

    prefixes = client.prefixes("m", limit=3)["m"]
    assert prefixes.degraded is None and prefixes.block_size == 64 and prefixes.requests > 0
    for _ in range(3):
        client.route("m", tokens=range(100))
    [hot] = client.prefixes()["m"].prefixes
    assert (hot.blocks, hot.tokens, hot.missed, hot.copies, hot.should_hold) == (1, 64, 0, 1, [])
    assert hot.requests > 3 and [(s.pod, s.rank) for s in hot.sent] == [("b", 1)]
    assert [(h.pod, h.rank, h.tier) for h in hot.held_by] == [("b", 1, "gpu")]
    with pytest.raises(kvatlas.APIError):
        client.prefixes("m", limit=0)

    assert client.route("m", tokens=[7], labels={"zone": "1"}).pod == "a"
    assert client.route("m", tokens=[7], pinned={"pod": "b"}, policy="least_requests").pod == "b"
    assert client.route("m", tokens=[7], prefer={"zone=1": 5}).pod == "a"

    long = range(1000, 2000)
    pair = client.route("m", tokens=long, role="pair", pinned={"pod": "b"}, pinned_prefill={"pod": "a"}, explain=True)
    assert pair.prefill is not None and (pair.pod, pair.prefill.pod, pair.local_prefill) == ("b", "a", None)
    assert pair.headers == {"x-prefiller-host-port": "a"} and pair.pairs[0].prefill.pod == "a" and pair.prefill.costs
    assert client.route("m", tokens=[7], role="pair").local_prefill == "short"
    client.add_blocks("m", "a", tokens=long)
    fetch = {"pull": {"block_bytes": 1000, "bandwidth": 1e10}}
    pull = client.route("m", tokens=long, pinned={"pod": "b", "rank": 0}, overrides=fetch, explain=True)
    assert pull.pull_from is not None and pull.pull_from.pod == "a" and pull.pull_from.tokens > 0
    assert pull.kv_transfer_params["remote_kv_source"]["remote_host"] == "a"
    assert pull.pull_plan is not None and pull.pull_plan.wait is None and pull.pull_plan.pull is not None
    assert client.set_routing("m", policy="round_robin")["policy"] == "round_robin"
    assert client.routing("m")["policy"] == "round_robin"
    assert client.route("m", tokens=[7]).policy == "round_robin"


def test_events(client: kvatlas.Client) -> None:
    big = 2**64 - 3
    stored = {
        "type": "BlockStored",
        "block_hashes": [big],
        "token_ids": list(range(64)),
        "block_size": 64,
        "medium": "GPU",
    }
    got = client.push_events("a", "m", [stored, {"type": "BlockMoved"}], rank=0, engine="vllm")
    assert (got.applied, got.skipped) == (1, 1)
    assert got.ranks == [kvatlas.EventsRank(rank=0, applied=1, began="")]
    assert got.skips == [kvatlas.EventSkip(event=1, reason="unknown_kind", field="type")]
    assert client.score("m", tokens=range(64)).best == "a"
    client.push_events("a", "m", [{"type": "BlockRemoved", "block_hashes": [big], "medium": "GPU"}])
    assert client.score("m", tokens=range(64)).best is None


def test_refusals(client: kvatlas.Client, url: str) -> None:
    with pytest.raises(kvatlas.APIError) as e:
        client.score("m", tokens=[1], strategy="best")
    assert (e.value.status, e.value.code, e.value.param) == (400, "invalid_request", "strategy")
    assert e.value.request_id and "strategy" in e.value.message
    with pytest.raises(kvatlas.APIError) as e:
        client.pod("nobody")
    assert e.value.status == 404
    with pytest.raises(kvatlas.APIError) as e:
        client.tokenize("no/such-model", prompt="hi")
    assert e.value.code == "unknown_model"
    with pytest.raises(TypeError, match="exactly one"):
        client.score("m")
    with pytest.raises(TypeError, match="exactly one"):
        client.score("m", prompt="a", tokens=[1])
    with pytest.raises(ValueError):
        client.route("m", tokens=[1], prefer={"zone=1": float("nan")})
    with kvatlas.Client(url + "/elsewhere") as elsewhere, pytest.raises(kvatlas.APIError) as e:
        elsewhere.models()
    assert e.value.status == 404


def test_no_server() -> None:
    with kvatlas.Client("127.0.0.1:1") as c, pytest.raises(kvatlas.TransportError):
        c.ready()


def test_ready(client: kvatlas.Client) -> None:
    client.ready()


def test_async(client: kvatlas.Client, url: str) -> None:
    client.add_blocks("m", "a", tokens=range(64))

    async def run() -> None:
        async with kvatlas.AsyncClient(url) as c:
            scores = await asyncio.gather(*(c.score("m", tokens=range(64)) for _ in range(50)))
            assert {s.best for s in scores} == {"a"}
            assert (await c.route("m", tokens=range(64), reserve=True, request_id="r")).pod == "a"
            assert (await c.end("m", "r")).known
            with pytest.raises(kvatlas.APIError):
                await c.pod("nobody")
        async with kvatlas.AsyncClient("http://127.0.0.1:1") as c:
            with pytest.raises(kvatlas.TransportError):
                await c.ready()

    asyncio.run(run())


def test_token() -> None:
    url, token = os.environ["KVATLAS_GUARDED_URL"], os.environ["KVATLAS_GUARDED_TOKEN"]
    with kvatlas.Client(url, token=token) as c:
        assert c.add_blocks("m", "a", tokens=range(64)) == 1
        assert c.score("m", tokens=range(64)).best == "a"
    for wrong in (None, token + "x"):
        with kvatlas.Client(url, token=wrong) as c, pytest.raises(kvatlas.APIError) as e:
            c.score("m", tokens=range(64))
        assert (e.value.status, e.value.code) == (401, "unauthorized") and token not in str(e.value)

    async def run() -> None:
        async with kvatlas.AsyncClient(url, token=token) as c:
            assert (await c.score("m", tokens=range(64))).best == "a"
        async with kvatlas.AsyncClient(url) as c:
            with pytest.raises(kvatlas.APIError):
                await c.score("m", tokens=range(64))

    asyncio.run(run())


def test_the_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> "dict[str, str]":
        return {n: str(inspect.signature(m)) for n, m in vars(kind).items() if not n.startswith("_")}

    assert methods(kvatlas.Client) == methods(kvatlas.AsyncClient)
