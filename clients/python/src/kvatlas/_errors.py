"""What a call can raise."""

from __future__ import annotations

from typing import Optional


class KvatlasError(Exception):
    """The base of all errors of this package but those of wrong arguments."""


class TransportError(KvatlasError):
    """The server could not be reached, or did not answer in time.

    ``__cause__`` is the error of httpx.
    """


class BadResponseError(KvatlasError):
    """The answer is not one of kvatlas: something else may listen at the URL."""


class APIError(KvatlasError):
    """The server has refused the request.

    Attributes:
        status: the HTTP status; 4xx is the caller's fault, 5xx the server's.
        code: a word to compare, such as ``"unknown_model"``; empty when a proxy has
            answered in the server's place.
        message: a sentence for people.
        param: the field of the request that is to blame, if any.
        request_id: the id of the request in the server's log.
        retry_after: seconds to wait before another try, where the server says so.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: Optional[str] = None,
        request_id: Optional[str] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after
