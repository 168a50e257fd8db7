"""The end of clients and of processes: bounded, and nothing is lost without a word."""

import subprocess
import sys
import threading
import time

import pytest
from tests.fakes.broker import FakeBroker
from tests.integration.client.conftest import Run
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import ClosedError, Producer, SyncAdmin, SyncConsumer, SyncProducer

_HANDLER = """
import logging, logging.config, sys
from millrace.client import SyncProducer

class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.producer = SyncProducer(sys.argv[1], compression=sys.argv[3])

    def emit(self, record):
        if record.name == "program":
            self.producer.send(sys.argv[2], record.getMessage().encode())

    def close(self):
        super().close()
        self.producer.close()

log = logging.getLogger("program")
"""
_AT_THE_END = """
logging.basicConfig(level=logging.DEBUG, handlers=[Handler()])
for number in range(10):
    log.info("%d", number)
"""
_CONFIGURED_AGAIN = """
config = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"millrace": {"()": Handler}},
    "root": {"level": "INFO", "handlers": ["millrace"]},
}
for number in range(10):
    logging.config.dictConfig(config)
    log.info("%d", number)
"""
_OPEN = """
import sys
from millrace.client import SyncProducer

producer = SyncProducer(sys.argv[1], linger_ms="1min", compression=sys.argv[3], max_block_ms=500)
for number in range(10):
    producer.send(sys.argv[2], b"%d" % number)
"""
_OPEN_ON_A_LOOP = """
import asyncio, sys
from millrace.client import Producer

async def main():
    producer = Producer(sys.argv[1], linger_ms="1min")
    for number in range(10):
        producer.send(sys.argv[2], b"%d" % number)
    if sys.argv[3] == "kept":
        kept.append(producer)

kept = []
asyncio.run(main())
"""


@pytest.fixture
def topic(shared_broker: RunningBroker, topic_name: str) -> str:
    shared_broker.create_topic(topic_name, partitions=1)
    return topic_name


def run_program(text: str, *arguments: str) -> str:
    """Run a Python program to its end; return what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def stored(address: str, topic: str) -> list[bytes]:
    with SyncConsumer(address) as consumer, SyncAdmin(address) as admin:
        consumer.subscribe([topic])
        (end,) = admin.list_offsets([topic]).values()
        values: list[bytes] = []
        while len(values) < end.offset:
            values += [record.value for record in consumer.poll(5_000)]
        return values


TEN = [b"%d" % number for number in range(10)]


def test_a_handler_that_closes_its_producer_at_the_end_of_logging_delivers_all_lines(
    shared_broker: RunningBroker, topic: str
) -> None:
    """Threads that compress have ended by then."""
    run_program(_HANDLER + _AT_THE_END, shared_broker.address, topic, "zstd")
    assert stored(shared_broker.address, topic) == TEN


def test_a_handler_that_is_replaced_by_another_configuration_delivers_all_lines(
    shared_broker: RunningBroker, topic: str
) -> None:
    run_program(_HANDLER + _CONFIGURED_AGAIN, shared_broker.address, topic, "none")
    assert stored(shared_broker.address, topic) == TEN


def test_what_a_program_has_sent_when_it_ends_is_delivered_though_it_does_not_close(
    shared_broker: RunningBroker, topic: str
) -> None:
    assert run_program(_OPEN, shared_broker.address, topic, "zstd") == ""
    assert stored(shared_broker.address, topic) == TEN


def test_what_cannot_be_delivered_at_the_end_of_a_program_is_counted() -> None:
    told = run_program(_OPEN, "127.0.0.1:1", "orders", "none")
    assert told.startswith("a producer was not closed, and left records undelivered (10): no ")


@pytest.mark.parametrize("state", ["kept", "dropped"])
def test_what_an_asynchronous_producer_holds_when_its_loop_has_ended_is_counted(
    shared_broker: RunningBroker, topic: str, state: str
) -> None:
    told = run_program(_OPEN_ON_A_LOOP, shared_broker.address, topic, state)
    assert told.count("a producer was not closed, and left records undelivered (10)") == 1


async def test_close_of_a_producer_ends_in_time_and_says_how_much_is_not_acknowledged() -> None:
    async with FakeBroker(orders=1) as broker:
        broker.gate.clear()
        producer = Producer(broker.address, close_timeout_ms=200)
        handles = [producer.send("orders", b"v") for _ in range(7)]
        begun = time.monotonic()
        with pytest.raises(ClosedError, match=r"7 records .* close_timeout_ms=200"):
            await producer.close()
        assert time.monotonic() - begun < 10
        with pytest.raises(ClosedError, match="close_timeout_ms=200"):
            await handles[0]
        await producer.close()
        broker.gate.set()


def test_close_of_a_client_whose_thread_is_blocked_ends_in_time(
    shared_broker: RunningBroker, topic: str
) -> None:
    is_over, is_blocked = threading.Event(), threading.Event()

    def block(_: object) -> None:
        is_blocked.set()
        is_over.wait(60)

    producer = SyncProducer(shared_broker.address, close_timeout_ms=200)
    admin = SyncAdmin(shared_broker.address, close_timeout_ms=200)
    consumer = SyncConsumer(shared_broker.address, close_timeout_ms=200)
    producer.send(topic, b"first").add_done_callback(block)
    assert is_blocked.wait(60)
    producer.send(topic, b"second")
    begun = time.monotonic()
    with pytest.raises(ClosedError, match="1 record was not acknowledged"):
        producer.close()
    for client in (admin, consumer):
        with pytest.raises(ClosedError, match="blocks the clients' thread"):
            client.close()
    assert time.monotonic() - begun < 20
    is_over.set()
    for closed in (producer, admin, consumer):
        closed.close()


def test_close_of_a_member_ends_in_time_when_its_brokers_are_gone(
    run: Run, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    broker.create_topic("orders", partitions=1)
    with SyncProducer(broker.address) as producer:
        producer.send("orders", b"v")
    consumer = SyncConsumer(broker.address, group="billing", close_timeout_ms=500)
    consumer.subscribe(["orders"])
    while not consumer.poll(1_000):
        pass
    broker.kill()
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < 10
    wait_until(
        lambda: (
            "leaving_failed" in [getattr(record, "event_name", "") for record in caplog.records]
        ),
        "it is told",
    )
