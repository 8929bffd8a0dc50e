"""What the API answers.

A server of a later version may answer more: fields that are not known here are passed over.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import (
    Any,
    Dict,
    Hashable,
    List,
    Mapping,
    Optional,
    Type,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")


def decode(kind: Any, value: Any) -> Any:
    """Make of a value of JSON one of a type that is made of the classes below.

    Raises TypeError where the value does not fit.
    """
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin is Union:  # only Optional is in use
        return None if value is None else decode(get_args(kind)[0], value)
    if origin is list:
        return [decode(get_args(kind)[0], e) for e in _checked(value, list)]
    if origin is dict:
        of_key, of_value = get_args(kind)
        return {of_key(k): decode(of_value, v) for k, v in _checked(value, dict).items()}
    if dataclasses.is_dataclass(kind):
        members = _checked(value, dict)
        known = {name: decode(t, members[name]) for name, t in _hints(cast(Hashable, kind)).items() if name in members}
        return kind(**known)  # type: ignore[operator]
    if kind is float and type(value) is int:
        return float(value)
    return _checked(value, kind)


def _checked(value: Any, kind: Type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


@functools.lru_cache(maxsize=None)
def _hints(kind: Hashable) -> Mapping[str, Any]:
    return get_type_hints(kind)


@dataclass(frozen=True)
class Match:
    """What a pod holds of a prompt."""

    blocks: int
    """Index blocks of the pod's best rank."""
    tokens: int
    """The tokens in them."""
    tiers: Dict[str, int] = field(default_factory=dict)
    """The best rank's blocks by the best tier that holds each."""
    ranks: Dict[int, int] = field(default_factory=dict)
    """The blocks of each data-parallel rank that holds any."""
    reusable: Optional[int] = None
    """How many tokens that rank's engine can reuse; None with a strategy that does not tell."""


@dataclass(frozen=True)
class BlockCount:
    """The full index blocks of a prompt."""

    total: int
    size: int
    """Tokens a block."""


@dataclass(frozen=True)
class TokenCount:
    """The tokens of a prompt."""

    total: int
    source: str
    """tokens, tokenizer, prefix_store, block_keys, estimate or none."""
    exact: bool
    """False when they are those of a part of the prompt."""


@dataclass(frozen=True)
class Resolved:
    """What the name of a model means."""

    model: str
    lora: str = ""


@dataclass(frozen=True)
class Degraded:
    """Why an answer shows less than the index may hold."""

    reason: str
    stale_ms: int = 0


@dataclass(frozen=True)
class Score:
    """The ranking of pods for a prompt."""

    scores: Dict[str, float]
    best: Optional[str]
    """The pod to choose; None when all scores are 0."""
    matched: Dict[str, Match]
    blocks: BlockCount
    tokens: TokenCount
    resolved: Optional[Resolved] = None
    degraded: Optional[Degraded] = None
    left_out: int = 0
    """How many pods are not in scores, because of top."""
    frequencies: Optional[List[int]] = None
    explain: Optional[Dict[str, Any]] = None

    def ranking(self) -> List[str]:
        """The pods, the highest score first and equal ones by name."""
        return sorted(self.scores, key=lambda pod: (-self.scores[pod], pod))


@dataclass(frozen=True)
class Place:
    """A data-parallel rank of a pod."""

    pod: str
    rank: int = 0


@dataclass(frozen=True)
class Overlap:
    """What the chosen rank holds of a prompt."""

    blocks: int
    tokens: int
    """Tokens that its engine can reuse."""
    best_tokens: int
    """The most that any candidate could reuse."""
    tiers: Dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """What running requests take of a rank."""

    generation: int = 0
    work: int = 0
    """Prefill that is booked and not done, in units of the model's shape."""
    prefill_tokens: int = 0
    blocks: int = 0
    """Index blocks that running requests have in use."""
    requests: int = 0
    speed: float = 0.0
    """Units of prefill a millisecond, learnt from `samples` requests; 0 is not known."""
    samples: int = 0


@dataclass(frozen=True)
class RankLoad(Load):
    """The load of a rank."""

    pod: str = ""
    rank: int = 0


@dataclass(frozen=True)
class SentTo:
    """How many requests went to a rank."""

    pod: str
    rank: int
    requests: float


@dataclass(frozen=True)
class PrefixHolder:
    """A rank that holds a prefix."""

    pod: str
    rank: int
    tier: str
    """The slowest that part of it is in."""


@dataclass(frozen=True)
class HotPrefix:
    """A prefix that requests are routed with."""

    key: str
    """The block key, in hex, that names it; `block_keys` of `score` takes it."""
    blocks: int
    tokens: int
    requests: float
    """Those whose prompts begin so; half of them fade in 10 minutes."""
    share: float
    """Their part of all requests of the model."""
    missed: float
    """Those that were sent to a rank which did not hold all of it."""
    copies: int
    """On how many ranks it should be."""
    sent: List[SentTo] = field(default_factory=list)
    held_by: List[PrefixHolder] = field(default_factory=list)
    should_hold: List[Place] = field(default_factory=list)


@dataclass(frozen=True)
class ModelPrefixes:
    """The prefixes that requests of a model were routed with most, most first."""

    requests: float
    block_size: int
    prefixes: List[HotPrefix]
    degraded: Optional[Degraded] = None
    """What is missing; None when nothing is."""


@dataclass(frozen=True)
class Cost:
    """What a candidate costs."""

    pod: str
    rank: int
    total: Optional[float] = None
    """None of a candidate that is too busy."""
    terms: Dict[str, float] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    held_tokens: Dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Prefill:
    """The pod that prefills, of a pair."""

    pod: str
    rank: int
    overlap: Overlap
    fallbacks: List[Place] = field(default_factory=list)
    address: Optional[str] = None
    costs: List[Cost] = field(default_factory=list)


@dataclass(frozen=True)
class PairCost:
    """What two places cost together."""

    prefill: Place
    decode: Place
    total: Optional[float] = None
    """None of a pair with a place that is too busy."""
    terms: Dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PullSource:
    """A rank that part of a prompt is fetched from."""

    pod: str
    rank: int
    tokens: int
    ms: float
    """How many milliseconds the fetch takes."""
    address: Optional[str] = None


@dataclass(frozen=True)
class PullWay:
    """A place and its cost."""

    pod: str
    rank: int
    total: float


@dataclass(frozen=True)
class PullPlan:
    """What each way costs; None of one that there is not."""

    wait: Optional[PullWay] = None
    recompute: Optional[PullWay] = None
    pull: Optional[PullWay] = None


@dataclass(frozen=True)
class Route:
    """Where a request goes."""

    pod: str
    rank: int
    policy: str
    overlap: Overlap
    tokens: TokenCount
    fallbacks: List[Place] = field(default_factory=list)
    """Where to try next, in order."""
    address: Optional[str] = None
    reservation: Optional[str] = None
    """The name to report by; None when nothing was booked."""
    again: bool = False
    """True when an earlier call had booked the request."""
    resolved: Optional[Resolved] = None
    costs: List[Cost] = field(default_factory=list)
    """What the candidates cost, with explain=True."""
    prefill: Optional[Prefill] = None
    """The pod that prefills, with role="pair"; the rest is about the one that decodes."""
    local_prefill: Optional[str] = None
    """Why the pod that decodes prefills as well."""
    pairs: List[PairCost] = field(default_factory=list)
    """The cheapest pairs, with explain=True."""
    headers: Dict[str, str] = field(default_factory=dict)
    """Headers to send the request with, as llm-d's sidecars read them."""
    pull_from: Optional[PullSource] = None
    """Whom the pod that prefills fetches part of the prompt from."""
    kv_transfer_params: Dict[str, Any] = field(default_factory=dict)
    """The same as vLLM's field of this name."""
    pull_plan: Optional[PullPlan] = None
    """What each way costs, with explain=True."""
    degraded: Optional[Degraded] = None


@dataclass(frozen=True)
class Report:
    """What became of a report on a request."""

    known: bool
    """True when the request runs; else the report has changed nothing."""
    pod: str = ""
    rank: int = 0
    first: bool = False
    """True when the report has changed something: it is not the second of its kind."""
    predicted_tokens: int = 0


@dataclass(frozen=True)
class PartOf:
    """Which rank of which pod a cache worker works for."""

    pod: str
    workers: int
    rank: int = 0
    worker: int = 0


@dataclass(frozen=True)
class Pod:
    """The registration of an engine replica. The API's documentation has the fields' meanings."""

    name: str
    model: str
    aliases: List[str] = field(default_factory=list)
    adapters: List[str] = field(default_factory=list)
    address: str = ""
    role: str = ""
    ranks: int = 0
    engine: str = ""
    events: str = ""
    replay: str = ""
    block_size: int = 0
    kv_tokens: int = 0
    labels: Dict[str, str] = field(default_factory=dict)
    part_of: Optional[PartOf] = None
    beside: bool = False
    lease_s: float = 0.0


@dataclass(frozen=True)
class Model:
    """How a model is indexed."""

    name: str
    block_size: int
    scheme: str
    unregistered: bool = False


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text or a chat."""

    tokens: List[int]
    count: int
    exact: bool
    source: str


@dataclass(frozen=True)
class EventsRank:
    """What became of a rank's events."""

    rank: int
    applied: int = 0
    skipped: int = 0
    duplicate: bool = False
    began: str = ""
    """Why a new generation of the rank began: first, lost, restarted or ended; "" when none did."""
    skipped_blocks: Dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class EventSkip:
    """An event that was left out."""

    event: int
    reason: str
    field: Optional[str] = None


@dataclass(frozen=True)
class EventsReport:
    """What has become of the events of a push."""

    applied: int
    skipped: int
    ranks: List[EventsRank] = field(default_factory=list)
    skips: List[EventSkip] = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """The answers for several prompts."""

    results: List[Score]


@dataclass(frozen=True)
class Pods:
    pods: List[Pod]


@dataclass(frozen=True)
class Models:
    models: List[Model]


@dataclass(frozen=True)
class Loads:
    models: Dict[str, List[RankLoad]]


@dataclass(frozen=True)
class Prefixes:
    models: Dict[str, ModelPrefixes]


@dataclass(frozen=True)
class LoadPushed:
    pod: str
    rank: int
    stale_after_s: float


@dataclass(frozen=True)
class Blocks:
    blocks: int
