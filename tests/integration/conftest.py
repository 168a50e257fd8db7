"""Brokers for the tests: one that well-behaved tests share, and others made to order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import RunningCluster

StartBroker = Callable[..., RunningBroker]


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with default settings, for tests that leave it as it was."""
    broker = RunningBroker(tmp_path_factory.mktemp("shared"))
    yield broker.start()
    broker.abandon()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers of this test's own; arguments as of `RunningBroker`, the folder left out."""
    started: list[RunningBroker] = []

    def start(settings: dict[str, object] | None = None, **others: Any) -> RunningBroker:
        folder = tmp_path / f"broker-{len(started)}"
        started.append(RunningBroker(folder, settings, **others))
        return started[-1].start()

    yield start
    for broker in started:
        broker.abandon()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers of this test's own, which it may stop."""
    running = RunningCluster(tmp_path)
    try:
        yield running.start()
    finally:
        running.abandon()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
