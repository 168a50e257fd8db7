"""Topics with transactions on the command line."""

import json
import time
from collections.abc import Iterator

import pytest
from tests.fakes.broker import FakeBroker
from tests.fakes.transaction_log import TransactionLog
from tests.integration.cli.command_line import CommandLine

from millrace.client._sync.loop_thread import LoopThread


@pytest.fixture
def millrace() -> Iterator[CommandLine]:
    """Of a topic with a committed, an aborted and an open transaction."""
    broker, loop = FakeBroker(), LoopThread.shared()
    loop.call(broker.start())
    broker.create_topic("orders", 1)
    log = TransactionLog(broker.log("orders").topic_partition)
    log.append([b"committed"], 1)
    log.append([b"aborted"], 2)
    log.end([1], is_committed=True)
    log.end([2], is_committed=False)
    log.append([b"open"], 3)
    broker.log("orders").put(log)
    yield CommandLine(broker.address)
    loop.call(broker.stop())


def test_consume_ends_where_what_is_committed_does(millrace: CommandLine) -> None:
    began = time.monotonic()
    assert millrace.ok("consume", "orders", "--timeout", "20") == "committed\n"
    assert time.monotonic() - began < 15
    printed = millrace.ok("consume", "orders", "--isolation", "read_uncommitted")
    assert printed.split() == ["committed", "aborted", "open"]


def test_offsets_end_where_readers_do(millrace: CommandLine) -> None:
    (found,) = json.loads(millrace.ok("offsets", "orders", "-o", "json"))
    assert found["latest"] == 4
    (found,) = json.loads(
        millrace.ok("offsets", "orders", "-o", "json", "--isolation", "read_uncommitted")
    )
    assert found["latest"] == 5


def test_perf_ends_with_the_last_record_that_it_may_read(millrace: CommandLine) -> None:
    began = time.monotonic()
    found = json.loads(millrace.ok("perf", "consume", "orders", "--timeout", "20", "-o", "json"))
    assert found["records"] == 1
    assert time.monotonic() - began < 15
