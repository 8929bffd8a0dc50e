"""The tests run against the server at KVATLAS_URL, which is empty at their start."""

import os
from typing import Iterator

import pytest

import kvatlas


@pytest.fixture
def url() -> str:
    return os.environ["KVATLAS_URL"]


@pytest.fixture
def client(url: str) -> Iterator[kvatlas.Client]:
    with kvatlas.Client(url) as c:
        yield c
        for pod in c.pods():
            c.delete_pod(pod.name)
