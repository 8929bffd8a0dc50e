"""The two clients. They differ in how they wait, and in nothing else."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Type, TypeVar

import httpx

from . import _calls
from ._calls import Call, Messages
from ._errors import TransportError
from ._types import EventsReport, Model, ModelPrefixes, Pod, RankLoad, Report, Route, Score, Tokens

T = TypeVar("T")

_TIMEOUT = 10.0


def _base(url: str) -> str:
    return url if "://" in url else "http://" + url


class Client:
    """Calls one server. It is safe for concurrent use by threads.

    Args:
        url: where the server is, such as ``http://127.0.0.1:8080``.
        timeout: seconds for each step of a call (connect, write, read).
        token: a bearer token that the server knows; None sends none.
        http: an httpx.Client to send by, with its own proxies, TLS, headers and timeouts;
            the caller closes it.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = _TIMEOUT,
        token: Optional[str] = None,
        http: Optional[httpx.Client] = None,
    ) -> None:
        self._url = _base(url).rstrip("/")
        self._headers = _calls.headers(token)
        self._own = http is None
        self._http = http if http is not None else httpx.Client(timeout=timeout)

    def close(self) -> None:
        """Close the connections, unless the caller has given the httpx.Client."""
        if self._own:
            self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        try:
            got = self._http.request(call.method, self._url + call.path, content=call.content(), headers=self._headers)
        except httpx.HTTPError as e:
            raise TransportError(f"{call.method} {call.path}: {e or type(e).__name__}") from e
        return call.read(got.status_code, got.headers, got.content)

    def score(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        body: Optional[Mapping[str, Any]] = None,
        pods: Optional[Sequence[str]] = None,
        top: Optional[int] = None,
        strategy: Optional[str] = None,
        lora: Optional[str] = None,
        cache_salt: Optional[str] = None,
        mode: Optional[str] = None,
        wait_ms: Optional[int] = None,
        early_exit: Optional[bool] = None,
        explain: Optional[bool] = None,
        **fields: Any,
    ) -> Score:
        """Rank the pods for a prompt, by how much of it they hold.

        The prompt is one of: a text, the messages of a chat, token ids, block keys, or
        the whole body of a request to an engine, which has the model too. Further fields of
        the API may be given by name. Raises KvatlasError.
        """
        form = {"prompt": prompt, "messages": messages, "tokens": tokens, "block_keys": block_keys, "body": body}
        fields.update(
            pods=None if pods is None else list(pods),
            top=top,
            strategy=strategy,
            lora=lora,
            cache_salt=cache_salt,
            mode=mode,
            wait_ms=wait_ms,
            early_exit=early_exit,
            explain=explain,
        )
        return self._send(_calls.score(model, form, fields))

    def score_prompts(self, model: str, prompts: Iterable[str], **fields: Any) -> List[Score]:
        """Rank the pods for each of up to 64 texts in one call."""
        return (self._send(_calls.score_prompts(model, prompts, fields))).results

    def route(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        body: Optional[Mapping[str, Any]] = None,
        pods: Optional[Sequence[str]] = None,
        lora: Optional[str] = None,
        cache_salt: Optional[str] = None,
        reserve: Optional[bool] = None,
        request_id: Optional[str] = None,
        expected_output_tokens: Optional[int] = None,
        policy: Optional[str] = None,
        overrides: Optional[Mapping[str, Any]] = None,
        role: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        prefer: Optional[Mapping[str, float]] = None,
        explain: Optional[bool] = None,
        **fields: Any,
    ) -> Route:
        """Choose the pod and rank for a request and, with reserve, book it there.

        What is booked is to be reported on by :meth:`done`, :meth:`output` and
        :meth:`end`; without a report its lease ends it. Raises KvatlasError: an
        APIError with status 404 when no pod may take it, with 503 and retry_after
        when all are busy.
        """
        form = {"prompt": prompt, "messages": messages, "tokens": tokens, "block_keys": block_keys, "body": body}
        fields.update(
            pods=None if pods is None else list(pods),
            lora=lora,
            cache_salt=cache_salt,
            reserve=reserve,
            request_id=request_id,
            expected_output_tokens=expected_output_tokens,
            policy=policy,
            overrides=overrides,
            role=role,
            labels=labels,
            prefer=prefer,
            explain=explain,
        )
        return self._send(_calls.route(model, form, fields))

    def done(self, model: str, request_id: str, cached_tokens: Optional[int] = None) -> Report:
        """Report that the prefill of a request is over, most often with its first token.

        cached_tokens is how many tokens the engine says it has reused, from its usage.
        """
        return self._send(_calls.report("done", model, request_id, {"cached_tokens": cached_tokens}))

    def output(self, model: str, request_id: str, tokens: int) -> Report:
        """Report how many tokens the output of a request has so far, which renews its lease."""
        return self._send(_calls.report("output", model, request_id, {"tokens": tokens}))

    def end(self, model: str, request_id: str, cached_tokens: Optional[int] = None) -> Report:
        """Report that a request is over, however it ended.

        cached_tokens is what done takes, for a request without done, whose answer came in one piece.
        """
        return self._send(_calls.report("end", model, request_id, {"cached_tokens": cached_tokens}))

    def loads(self, model: Optional[str] = None) -> Dict[str, List[RankLoad]]:
        """What runs on each rank, by model."""
        return (self._send(_calls.loads(model))).models

    def prefixes(self, model: Optional[str] = None, limit: Optional[int] = None) -> Dict[str, ModelPrefixes]:
        """The prefixes that requests were routed with most, who holds them and who should, by model."""
        return (self._send(_calls.prefixes(model, limit))).models

    def push_load(
        self,
        pod: str,
        *,
        running: int,
        waiting: int,
        rank: int = 0,
        waiting_tokens: Optional[int] = None,
        kv_usage: Optional[float] = None,
        kv_tokens: Optional[int] = None,
    ) -> float:
        """Tell what an engine says that runs on a rank of a pod. Returns for how many seconds it counts."""
        fields = dict(
            rank=rank,
            running=running,
            waiting=waiting,
            waiting_tokens=waiting_tokens,
            kv_usage=kv_usage,
            kv_tokens=kv_tokens,
        )
        return (self._send(_calls.push_load(pod, fields))).stale_after_s

    def routing(self, model: str) -> Dict[str, Any]:
        """How a model's requests are routed."""
        return self._send(_calls.routing(model))

    def set_routing(self, model: str, **settings: Any) -> Dict[str, Any]:
        """Replace the settings that are named, and return all."""
        return self._send(_calls.set_routing(model, settings))

    def register_pod(self, pod: Pod) -> None:
        """Register a pod, or renew its registration and replace what is known of it."""
        self._send(_calls.register_pod(pod))

    def pods(self) -> List[Pod]:
        """The live pods by name."""
        return (self._send(_calls.pods())).pods

    def pod(self, name: str) -> Pod:
        """One live pod; of one that is not known APIError with status 404."""
        return self._send(_calls.pod(name))

    def delete_pod(self, name: str) -> None:
        """Remove a pod: its blocks are not credited any more."""
        self._send(_calls.delete_pod(name))

    def add_blocks(
        self,
        model: str,
        pod: str,
        *,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        **fields: Any,
    ) -> int:
        """Say that a pod holds the blocks of a prompt, and return how many they are.

        Fields: rank, tier, lora, cache_salt.
        """
        fields.update(block_keys=None if block_keys is None else list(block_keys))
        return (self._send(_calls.blocks("add", model, pod, tokens, fields))).blocks

    def remove_blocks(
        self,
        model: str,
        pod: str,
        *,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        **fields: Any,
    ) -> int:
        """Say that a pod does not hold them any more, in a tier or in all."""
        fields.update(block_keys=None if block_keys is None else list(block_keys))
        return (self._send(_calls.blocks("remove", model, pod, tokens, fields))).blocks

    def clear_blocks(self, model: str, pod: str, **fields: Any) -> None:
        """Say that a pod holds nothing any more, of any model, or with rank that one does not."""
        self._send(_calls.blocks("clear", model, pod, None, fields))

    def push_events(self, pod: str, model: str, events: Iterable[Mapping[str, Any]], **fields: Any) -> EventsReport:
        """Give the server events of an engine; the index has them when this returns.

        Fields: rank, engine, seq, block_size. Hashes beyond 2**53 are exact.
        """
        return self._send(_calls.push_events(pod, model, events, fields))

    def models(self) -> List[Model]:
        """The indexed models by name."""
        return (self._send(_calls.models())).models

    def tokenize(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        body: Optional[Mapping[str, Any]] = None,
        **fields: Any,
    ) -> Tokens:
        """The tokens of a text or a chat, as the engine makes them."""
        form = {"prompt": prompt, "messages": messages, "body": body}
        return self._send(_calls.tokenize(model, form, fields))

    def ready(self) -> None:
        """Return when the server answers that it is ready; else raise KvatlasError."""
        self._send(_calls.ready())


class AsyncClient:
    """Calls one server, for asyncio. Its methods are those of Client.

    Args:
        url: where the server is, such as ``http://127.0.0.1:8080``.
        timeout: seconds for each step of a call (connect, write, read).
        token: a bearer token that the server knows; None sends none.
        http: an httpx.AsyncClient to send by; the caller closes it.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = _TIMEOUT,
        token: Optional[str] = None,
        http: Optional[httpx.AsyncClient] = None,
    ) -> None:
        self._url = _base(url).rstrip("/")
        self._headers = _calls.headers(token)
        self._own = http is None
        self._http = http if http is not None else httpx.AsyncClient(timeout=timeout)

    async def close(self) -> None:
        """Close the connections, unless the caller has given the httpx.AsyncClient."""
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        try:
            got = await self._http.request(call.method, self._url + call.path, content=call.content(), headers=self._headers)
        except httpx.HTTPError as e:
            raise TransportError(f"{call.method} {call.path}: {e or type(e).__name__}") from e
        return call.read(got.status_code, got.headers, got.content)

    async def score(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        body: Optional[Mapping[str, Any]] = None,
        pods: Optional[Sequence[str]] = None,
        top: Optional[int] = None,
        strategy: Optional[str] = None,
        lora: Optional[str] = None,
        cache_salt: Optional[str] = None,
        mode: Optional[str] = None,
        wait_ms: Optional[int] = None,
        early_exit: Optional[bool] = None,
        explain: Optional[bool] = None,
        **fields: Any,
    ) -> Score:
        """Rank the pods for a prompt, by how much of it they hold.

        The prompt is one of: a text, the messages of a chat, token ids, block keys, or
        the whole body of a request to an engine, which has the model too. Further fields of
        the API may be given by name. Raises KvatlasError.
        """
        form = {"prompt": prompt, "messages": messages, "tokens": tokens, "block_keys": block_keys, "body": body}
        fields.update(
            pods=None if pods is None else list(pods),
            top=top,
            strategy=strategy,
            lora=lora,
            cache_salt=cache_salt,
            mode=mode,
            wait_ms=wait_ms,
            early_exit=early_exit,
            explain=explain,
        )
        return await self._send(_calls.score(model, form, fields))

    async def score_prompts(self, model: str, prompts: Iterable[str], **fields: Any) -> List[Score]:
        """Rank the pods for each of up to 64 texts in one call."""
        return (await self._send(_calls.score_prompts(model, prompts, fields))).results

    async def route(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        body: Optional[Mapping[str, Any]] = None,
        pods: Optional[Sequence[str]] = None,
        lora: Optional[str] = None,
        cache_salt: Optional[str] = None,
        reserve: Optional[bool] = None,
        request_id: Optional[str] = None,
        expected_output_tokens: Optional[int] = None,
        policy: Optional[str] = None,
        overrides: Optional[Mapping[str, Any]] = None,
        role: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        prefer: Optional[Mapping[str, float]] = None,
        explain: Optional[bool] = None,
        **fields: Any,
    ) -> Route:
        """Choose the pod and rank for a request and, with reserve, book it there.

        What is booked is to be reported on by :meth:`done`, :meth:`output` and
        :meth:`end`; without a report its lease ends it. Raises KvatlasError: an
        APIError with status 404 when no pod may take it, with 503 and retry_after
        when all are busy.
        """
        form = {"prompt": prompt, "messages": messages, "tokens": tokens, "block_keys": block_keys, "body": body}
        fields.update(
            pods=None if pods is None else list(pods),
            lora=lora,
            cache_salt=cache_salt,
            reserve=reserve,
            request_id=request_id,
            expected_output_tokens=expected_output_tokens,
            policy=policy,
            overrides=overrides,
            role=role,
            labels=labels,
            prefer=prefer,
            explain=explain,
        )
        return await self._send(_calls.route(model, form, fields))

    async def done(self, model: str, request_id: str, cached_tokens: Optional[int] = None) -> Report:
        """Report that the prefill of a request is over, most often with its first token.

        cached_tokens is how many tokens the engine says it has reused, from its usage.
        """
        return await self._send(_calls.report("done", model, request_id, {"cached_tokens": cached_tokens}))

    async def output(self, model: str, request_id: str, tokens: int) -> Report:
        """Report how many tokens the output of a request has so far, which renews its lease."""
        return await self._send(_calls.report("output", model, request_id, {"tokens": tokens}))

    async def end(self, model: str, request_id: str, cached_tokens: Optional[int] = None) -> Report:
        """Report that a request is over, however it ended.

        cached_tokens is what done takes, for a request without done, whose answer came in one piece.
        """
        return await self._send(_calls.report("end", model, request_id, {"cached_tokens": cached_tokens}))

    async def loads(self, model: Optional[str] = None) -> Dict[str, List[RankLoad]]:
        """What runs on each rank, by model."""
        return (await self._send(_calls.loads(model))).models

    async def prefixes(self, model: Optional[str] = None, limit: Optional[int] = None) -> Dict[str, ModelPrefixes]:
        """The prefixes that requests were routed with most, who holds them and who should, by model."""
        return (await self._send(_calls.prefixes(model, limit))).models

    async def push_load(
        self,
        pod: str,
        *,
        running: int,
        waiting: int,
        rank: int = 0,
        waiting_tokens: Optional[int] = None,
        kv_usage: Optional[float] = None,
        kv_tokens: Optional[int] = None,
    ) -> float:
        """Tell what an engine says that runs on a rank of a pod. Returns for how many seconds it counts."""
        fields = dict(
            rank=rank,
            running=running,
            waiting=waiting,
            waiting_tokens=waiting_tokens,
            kv_usage=kv_usage,
            kv_tokens=kv_tokens,
        )
        return (await self._send(_calls.push_load(pod, fields))).stale_after_s

    async def routing(self, model: str) -> Dict[str, Any]:
        """How a model's requests are routed."""
        return await self._send(_calls.routing(model))

    async def set_routing(self, model: str, **settings: Any) -> Dict[str, Any]:
        """Replace the settings that are named, and return all."""
        return await self._send(_calls.set_routing(model, settings))

    async def register_pod(self, pod: Pod) -> None:
        """Register a pod, or renew its registration and replace what is known of it."""
        await self._send(_calls.register_pod(pod))

    async def pods(self) -> List[Pod]:
        """The live pods by name."""
        return (await self._send(_calls.pods())).pods

    async def pod(self, name: str) -> Pod:
        """One live pod; of one that is not known APIError with status 404."""
        return await self._send(_calls.pod(name))

    async def delete_pod(self, name: str) -> None:
        """Remove a pod: its blocks are not credited any more."""
        await self._send(_calls.delete_pod(name))

    async def add_blocks(
        self,
        model: str,
        pod: str,
        *,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        **fields: Any,
    ) -> int:
        """Say that a pod holds the blocks of a prompt, and return how many they are.

        Fields: rank, tier, lora, cache_salt.
        """
        fields.update(block_keys=None if block_keys is None else list(block_keys))
        return (await self._send(_calls.blocks("add", model, pod, tokens, fields))).blocks

    async def remove_blocks(
        self,
        model: str,
        pod: str,
        *,
        tokens: Optional[Iterable[int]] = None,
        block_keys: Optional[Sequence[str]] = None,
        **fields: Any,
    ) -> int:
        """Say that a pod does not hold them any more, in a tier or in all."""
        fields.update(block_keys=None if block_keys is None else list(block_keys))
        return (await self._send(_calls.blocks("remove", model, pod, tokens, fields))).blocks

    async def clear_blocks(self, model: str, pod: str, **fields: Any) -> None:
        """Say that a pod holds nothing any more, of any model, or with rank that one does not."""
        await self._send(_calls.blocks("clear", model, pod, None, fields))

    async def push_events(
        self, pod: str, model: str, events: Iterable[Mapping[str, Any]], **fields: Any
    ) -> EventsReport:
        """Give the server events of an engine; the index has them when this returns.

        Fields: rank, engine, seq, block_size. Hashes beyond 2**53 are exact.
        """
        return await self._send(_calls.push_events(pod, model, events, fields))

    async def models(self) -> List[Model]:
        """The indexed models by name."""
        return (await self._send(_calls.models())).models

    async def tokenize(
        self,
        model: Optional[str] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Messages] = None,
        body: Optional[Mapping[str, Any]] = None,
        **fields: Any,
    ) -> Tokens:
        """The tokens of a text or a chat, as the engine makes them."""
        form = {"prompt": prompt, "messages": messages, "body": body}
        return await self._send(_calls.tokenize(model, form, fields))

    async def ready(self) -> None:
        """Return when the server answers that it is ready; else raise KvatlasError."""
        await self._send(_calls.ready())
