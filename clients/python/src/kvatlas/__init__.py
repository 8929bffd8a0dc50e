"""Client of kvatlas's HTTP API, synchronous and asynchronous.

    >>> import kvatlas
    >>> with kvatlas.Client("http://127.0.0.1:8080") as client:
    ...     client.score("demo", tokens=range(200)).best

Nothing is retried: a caller knows what a second try may cost, and
:attr:`APIError.retry_after` says when the server would like it.
"""

from ._client import AsyncClient, Client
from ._errors import APIError, BadResponseError, KvatlasError, TransportError
from ._types import (
    Cost,
    Degraded,
    EventsReport,
    EventsRank,
    EventSkip,
    HotPrefix,
    Load,
    Match,
    Model,
    ModelPrefixes,
    Overlap,
    PairCost,
    PartOf,
    Place,
    Pod,
    Prefill,
    PrefixHolder,
    PullPlan,
    PullSource,
    PullWay,
    RankLoad,
    Report,
    Resolved,
    Route,
    Score,
    SentTo,
    TokenCount,
    Tokens,
)

__all__ = [
    "APIError",
    "AsyncClient",
    "BadResponseError",
    "Client",
    "Cost",
    "Degraded",
    "EventSkip",
    "EventsRank",
    "EventsReport",
    "HotPrefix",
    "KvatlasError",
    "Load",
    "Match",
    "Model",
    "ModelPrefixes",
    "Overlap",
    "PairCost",
    "PartOf",
    "Place",
    "Pod",
    "Prefill",
    "PrefixHolder",
    "PullPlan",
    "PullSource",
    "PullWay",
    "RankLoad",
    "Report",
    "Resolved",
    "Route",
    "Score",
    "SentTo",
    "TokenCount",
    "Tokens",
    "TransportError",
]
