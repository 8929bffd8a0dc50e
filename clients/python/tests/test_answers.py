"""Answers that a server of this version does not give."""

import json
from typing import Any

import httpx
import pytest

import kvatlas


def client(status: int, content: bytes, headers: Any = None) -> kvatlas.Client:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=content, headers=headers)

    return kvatlas.Client("http://x", http=httpx.Client(transport=httpx.MockTransport(answer)))


def test_a_later_version_says_more() -> None:
    body = {"models": [{"name": "m", "block_size": 64, "scheme": "native", "later": {"a": [1]}}], "more": 1}
    assert client(200, json.dumps(body).encode()).models() == [kvatlas.Model("m", 64, "native")]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"[]",
        b'{"models":3}',
        b'{"models":[3]}',
        b'{"models":[{"name":1,"block_size":64,"scheme":"s"}]}',
        b'{"models":[{}]}',
        b"\xff",
    ],
)
def test_what_is_no_answer(content: bytes) -> None:
    with pytest.raises(kvatlas.BadResponseError):
        client(200, content).models()


def test_a_proxy_refuses() -> None:
    with pytest.raises(kvatlas.APIError) as e:
        client(502, b"<html>bad gateway</html>", {"retry-after": "2"}).models()
    assert (e.value.status, e.value.code, e.value.retry_after) == (502, "", 2.0)
    for content in (b'{"error":1}', b'{"error":{"code":"x"}}', b"[]", b"\xff\xfe"):
        with pytest.raises(kvatlas.APIError) as e:
            client(500, content).models()
        assert e.value.code == ""
