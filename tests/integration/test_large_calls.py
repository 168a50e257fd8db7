"""Clients that keep a broker busy with large calls: others wait a turn of its loop, and no more."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from tests.integration.raw_client import PRODUCE, RawClient, RawStream, batch_of, request_of
from tests.integration.running_broker import RunningBroker

from millrace.core.ids import TopicPartition
from millrace.proto.v1 import cluster_pb2

MIB = 1 << 20
MEASURES_MAX = 4
"""A machine that is busy with something else is slow for a while; a broker that stops, always."""


def large_calls() -> dict[str, tuple[str, bytes]]:
    """Return calls that keep a broker busy for long: the method and the request, by their name."""
    text = "x" * 50
    one = {"no.such.setting": text}
    ten = {f"no.such.setting.{number}": text for number in range(10)}
    most = {f"k{number:05}": "1" for number in range(80_000)}
    calls: dict[str, tuple[str, Any]] = {
        "10,000 topics to alter": (
            "AlterTopics",
            cluster_pb2.AlterTopicsRequest(
                topics=[cluster_pb2.TopicChange(name="t", set_config=one)] * 10_000,
                validate_only=True,
            ),
        ),
        "80,000 settings": (
            "AlterTopics",
            cluster_pb2.AlterTopicsRequest(topics=[cluster_pb2.TopicChange(set_config=most)]),
        ),
        "10,000 topics to create": (
            "CreateTopics",
            cluster_pb2.CreateTopicsRequest(
                topics=[cluster_pb2.NewTopic(name="t", config=one)] * 10_000, validate_only=True
            ),
        ),
        "1,000 topics with 10 settings": (
            "CreateTopics",
            cluster_pb2.CreateTopicsRequest(
                topics=[cluster_pb2.NewTopic(name="t", config=ten)] * 1000, validate_only=True
            ),
        ),
        "10,000 unknown topics": (
            "GetMetadata",
            cluster_pb2.GetMetadataRequest(topics=[f"{text}-{number}" for number in range(10_000)]),
        ),
    }
    found = {name: (method, call.SerializeToString()) for name, (method, call) in calls.items()}
    assert all(MIB // 2 < len(data) < MIB for _, data in found.values())
    return found


@contextmanager
def calling(broker: RunningBroker, method: str, data: bytes, clients: int) -> Iterator[None]:
    """Have some clients make a call over and over, each one at a time."""
    is_over = threading.Event()
    begun = threading.Semaphore(0)

    def call() -> None:
        with RawClient(broker.address) as client:
            ask: Any = client.channel.unary_unary(f"/millrace.proto.v1.Cluster/{method}")
            while not is_over.is_set():
                begun.release()
                with suppress(grpc.RpcError):
                    ask(data, timeout=60)

    threads = [threading.Thread(target=call) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2 * clients):
            assert begun.acquire(timeout=60)
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def median_ms(broker: RunningBroker, partition: TopicPartition, trips: int = 40) -> float:
    """Return how long a client waits that writes one batch after the other."""
    taken = []
    with RawClient(broker.address) as client:
        stream = RawStream(client.channel, PRODUCE, timeout=120)
        for _ in range(trips):
            begun = time.monotonic()
            stream.send(request_of((partition, batch_of(partition))))
            stream.receive()
            taken.append(1000 * (time.monotonic() - begun))
            time.sleep(0.005)  # Trips begin anywhere in the broker's work.
        stream.cancel()
    return statistics.median(taken)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The broker that all of them call."""
    running = RunningBroker(tmp_path_factory.mktemp("called")).start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def partition(broker: RunningBroker) -> TopicPartition:
    """What others write to meanwhile."""
    with RawClient(broker.address) as client:
        return TopicPartition(client.create_topic("own", durability="replicated"), 0)


@pytest.mark.parametrize("clients", [1, 8])
@pytest.mark.parametrize("name", list(large_calls()))
def test_clients_with_large_calls_do_not_stop_others(
    broker: RunningBroker, partition: TopicPartition, name: str, clients: int
) -> None:
    """A stopped broker takes a quarter of a second to a second for each trip of others."""
    method, data = large_calls()[name]
    measures = []
    for _ in range(MEASURES_MAX):
        quiet = median_ms(broker, partition)
        with calling(broker, method, data, clients):
            busy = median_ms(broker, partition)
        if busy < 150 + 10 * quiet:
            return
        measures.append((quiet, busy))
    pytest.fail(f"milliseconds without them, and beside them: {measures}")
