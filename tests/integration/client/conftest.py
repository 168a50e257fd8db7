"""One event loop for all tests here: grpc.aio keeps calling into loops that are closed already."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="session", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """What runs coroutines."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture
def run(runner: asyncio.Runner) -> Run:
    """Return what runs a coroutine to its end."""
    return runner.run
