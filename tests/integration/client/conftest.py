"""One event loop for all tests here: grpc.aio keeps calling into loops that are closed already."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="session")
def _runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def run(_runner: asyncio.Runner) -> Run:
    """Return what runs a coroutine to its end."""

    def run_it(work: Coroutine[Any, Any, None]) -> None:
        _runner.run(work)

    return run_it
