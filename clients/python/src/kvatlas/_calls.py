"""What each call sends and how its answer is read. Nothing here does I/O."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from array import array
from dataclasses import dataclass
from typing import Any, Dict, Generic, Iterable, Mapping, Optional, Sequence, TypeVar
from urllib.parse import quote, urlencode

from . import _types as t
from ._errors import APIError, BadResponseError

T = TypeVar("T")

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the type of its answer."""

    method: str
    path: str
    answer: Any
    body: Optional[Mapping[str, Any]] = None

    def content(self) -> Optional[bytes]:
        """The body in JSON, None without one."""
        if self.body is None:
            return None
        return json.dumps(self.body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """The answer, or the error that the response is."""
        if not 200 <= status < 300:
            raise refusal(status, headers, content)
        try:
            value = json.loads(content)
            out: T = t.decode(self.answer, value)
        except (ValueError, TypeError) as e:
            raise BadResponseError(f"{self.method} {self.path}: {e}") from e
        return out


def refusal(status: int, headers: Mapping[str, str], content: bytes) -> APIError:
    """The error that a response is."""
    code, param = "", None
    message = content[:200].decode(errors="replace").strip()
    try:
        error = json.loads(content)["error"]
        code, message, param = str(error["code"]), str(error["message"]), error.get("param")
    except (ValueError, TypeError, KeyError):
        pass  # a proxy has answered
    try:
        wait: Optional[float] = float(headers.get("retry-after", ""))
    except ValueError:
        wait = None
    return APIError(status, code, message, param, headers.get("x-request-id"), wait)


def headers(token: Optional[str]) -> Dict[str, str]:
    """The headers of every request."""
    common = {"content-type": "application/json", "accept": "application/json"}
    if token is not None:
        common["authorization"] = "Bearer " + token
    return common


def _name(text: str) -> str:
    return quote(text, safe="")


def pack(tokens: Iterable[int]) -> str:
    """Token ids as the API's tokens_b64: u32 little-endian in base64."""
    try:
        words = array("I", tokens)
    except OverflowError as e:
        raise ValueError("a token is not within 0 and 4294967295") from e
    if words.itemsize != 4:  # no platform that CPython runs on
        raise NotImplementedError("unsigned int has not four bytes")
    if sys.byteorder == "big":
        words.byteswap()
    return base64.b64encode(words.tobytes()).decode()


def _prompt(
    prompt: Optional[str],
    messages: Optional[Messages],
    tokens: Optional[Iterable[int]],
    block_keys: Optional[Sequence[str]],
    body: Optional[Mapping[str, Any]],
) -> Dict[str, Any]:
    given = [x for x in (prompt, messages, tokens, block_keys, body) if x is not None]
    if len(given) != 1:
        raise TypeError("give exactly one of prompt, messages, tokens, block_keys and body")
    if body is not None:
        return dict(body)
    if prompt is not None:
        return {"prompt": prompt}
    if messages is not None:
        return {"messages": list(messages)}
    if tokens is not None:
        return {"tokens_b64": pack(tokens)}
    return {"block_keys": list(block_keys or ())}


def _with(body: Dict[str, Any], **fields: Any) -> Dict[str, Any]:
    """The body with the fields that are given, which go before its own."""
    body.update((k, v) for k, v in fields.items() if v is not None)
    return body


def score(model: Optional[str], form: Dict[str, Any], fields: Mapping[str, Any]) -> Call[t.Score]:
    return Call("POST", "/v1/score", t.Score, _with(_prompt(**form), model=model, **fields))


def score_prompts(model: str, prompts: Iterable[str], fields: Mapping[str, Any]) -> Call[t.Scores]:
    return Call("POST", "/v1/score", t.Scores, _with({"prompts": list(prompts)}, model=model, **fields))


def route(model: Optional[str], form: Dict[str, Any], fields: Mapping[str, Any]) -> Call[t.Route]:
    return Call("POST", "/v1/route", t.Route, _with(_prompt(**form), model=model, **fields))


def report(kind: str, model: str, request_id: str, fields: Mapping[str, Any]) -> Call[t.Report]:
    return Call("POST", f"/v1/requests/{_name(request_id)}/{kind}", t.Report, _with({"model": model}, **fields))


def loads(model: Optional[str]) -> Call[t.Loads]:
    return Call("GET", "/v1/loads" + ("?" + urlencode({"model": model}) if model else ""), t.Loads)


def prefixes(model: Optional[str], limit: Optional[int]) -> Call[t.Prefixes]:
    query = urlencode(_with({}, model=model or None, limit=limit))
    return Call("GET", "/v1/prefixes" + ("?" + query if query else ""), t.Prefixes)


def push_load(pod: str, fields: Mapping[str, Any]) -> Call[t.LoadPushed]:
    return Call("POST", f"/v1/pods/{_name(pod)}/load", t.LoadPushed, {k: v for k, v in fields.items() if v is not None})


def routing(model: str) -> Call[Dict[str, Any]]:
    return Call("GET", f"/v1/models/{_name(model)}/routing", Any)


def set_routing(model: str, settings: Mapping[str, Any]) -> Call[Dict[str, Any]]:
    return Call("PUT", f"/v1/models/{_name(model)}/routing", Any, dict(settings))


def register_pod(pod: t.Pod) -> Call[Any]:
    fields = {k: v for k, v in dataclasses.asdict(pod).items() if v}
    return Call("POST", "/v1/pods", Any, fields)


def pods() -> Call[t.Pods]:
    return Call("GET", "/v1/pods", t.Pods)


def pod(name: str) -> Call[t.Pod]:
    return Call("GET", f"/v1/pods/{_name(name)}", t.Pod)


def delete_pod(name: str) -> Call[Any]:
    return Call("DELETE", f"/v1/pods/{_name(name)}", Any)


def blocks(op: str, model: str, pod: str, tokens: Optional[Iterable[int]], fields: Mapping[str, Any]) -> Call[t.Blocks]:
    packed = None if tokens is None else pack(tokens)
    return Call(
        "POST", "/v1/blocks", t.Blocks, _with({"op": op, "model": model, "pod": pod}, tokens_b64=packed, **fields)
    )


def push_events(
    pod: str, model: str, events: Iterable[Mapping[str, Any]], fields: Mapping[str, Any]
) -> Call[t.EventsReport]:
    return Call(
        "POST", "/v1/events", t.EventsReport, _with({"pod": pod, "model": model, "events": list(events)}, **fields)
    )


def models() -> Call[t.Models]:
    return Call("GET", "/v1/models", t.Models)


def tokenize(model: Optional[str], form: Dict[str, Any], fields: Mapping[str, Any]) -> Call[t.Tokens]:
    return Call(
        "POST", "/v1/tokenize", t.Tokens, _with(_prompt(tokens=None, block_keys=None, **form), model=model, **fields)
    )


def ready() -> Call[Any]:
    return Call("GET", "/readyz", Any)
