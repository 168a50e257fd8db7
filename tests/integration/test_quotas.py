"""Quotas of real brokers: who exceeds one is held to it, and nobody else is slowed."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode
from millrace.client import InvalidQuotaError, SyncAdmin, SyncConsumer, SyncProducer

VALUE = b"v" * 10_000
RATE = 2_000_000


class Load:
    """A producer that sends as much as it may, from a thread of its own, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, client_id: str) -> None:
        # Small requests: one more than the quota allows is a small part of it.
        self.producer = SyncProducer(
            bootstrap,
            client_id=client_id,
            compression="none",
            batch_size=32_000,
            buffer_memory=400_000,
        )
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.producer.send(self._topic, VALUE)

    @property
    def acknowledged(self) -> int:
        """Bytes."""
        return self.producer.metrics()["acknowledged_records"] * len(VALUE)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.producer.close()


@contextmanager
def load(bootstrap: str, topic: str, client_id: str) -> Iterator[Load]:
    running = Load(bootstrap, topic, client_id)
    try:
        yield running
    finally:
        running.stop()


def rates_of(*loads: Load, seconds: float) -> list[float]:
    """Return bytes a second over this time."""
    began, before = time.monotonic(), [load.acknowledged for load in loads]
    time.sleep(seconds)  # What is measured is a rate.
    elapsed = time.monotonic() - began
    return [
        (producer.acknowledged - then) / elapsed
        for producer, then in zip(loads, before, strict=True)
    ]


MEASURES_MAX = 4
"""A pause of the machine spoils one measure; a quota that is not kept spoils all."""


def expect_rates(
    *loads: Load,
    seconds: float,
    are_right: Callable[..., bool],
    begin: Callable[[], object] = lambda: None,
) -> None:
    """Measure the rates of some loads until they are right, each time after `begin`."""
    measures = []
    for _ in range(MEASURES_MAX):
        begin()
        measures.append(rates_of(*loads, seconds=seconds))
        if are_right(*measures[-1]):
            return
    pytest.fail(f"bytes a second: {measures}")


def is_about(rate: float, limit: int) -> bool:
    return abs(rate - limit) <= limit / 10


def test_a_producer_is_held_to_its_quota_is_told_so_and_a_change_counts_at_once(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t")
        admin.set_quota("slow", client_id="slow", produce_bytes_per_second=RATE)
        with load(broker.address, "t", "slow") as slow, load(broker.address, "t", "free") as free:
            wait_until(lambda: slow.producer.metrics()["throttled_ms"] > 0, "it is told")
            expect_rates(
                *(slow, free),
                seconds=4,
                are_right=lambda held, other: is_about(held, RATE) and other > 4 * RATE,
            )
            assert free.producer.metrics()["throttled_ms"] == 0
            (use,) = admin.describe_quotas(["slow"])["slow"].uses
            assert (use.kind, use.client_id) == ("produce", "slow")
            assert use.limit_per_second == RATE
            assert use.throttled_ms > 1000
            name = 'millrace_quota_throttled_seconds_total{kind="produce",quota="slow"}'
            wait_until(lambda: broker.metrics().get(name, 0) > 1, "the metric tells of it")

            def set_to(rate: int) -> None:
                admin.set_quota("slow", client_id="slow", produce_bytes_per_second=rate)

            def change() -> None:
                set_to(RATE)
                time.sleep(1)  # So this is what counts.
                set_to(3 * RATE)

            def delete() -> None:
                set_to(3 * RATE)
                time.sleep(1)  # Likewise.
                admin.delete_quota("slow")

            expect_rates(
                slow, seconds=3, are_right=lambda rate: is_about(rate, 3 * RATE), begin=change
            )
            expect_rates(slow, seconds=1, are_right=lambda rate: rate > 4 * RATE, begin=delete)
            assert slow.producer.metrics()["failed_records"] == 0


def test_a_long_delay_ends_with_the_quota(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t")
        admin.set_quota("tiny", client_id="tiny", produce_bytes_per_second=1024)
        with SyncProducer(broker.address, client_id="tiny", compression="none") as producer:
            began = time.monotonic()
            for _ in range(10):
                producer.send("t", VALUE)
            producer.flush()
            wait_until(lambda: producer.metrics()["throttled_ms"] > 50_000, "it is told")
            delayed = producer.send("t", VALUE)
            (use,) = admin.describe_quotas(["tiny"])["tiny"].uses
            assert use.delay_ms > 50_000
            admin.delete_quota("tiny")
            assert delayed.result(20).offset == 10
            assert time.monotonic() - began < 30


def test_a_consumer_is_held_to_its_quota(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t")
        with SyncProducer(broker.address, compression="none", batch_size=32_000) as producer:
            for _ in range(2000):
                producer.send("t", VALUE)
        admin.set_quota("slow", client_id="slow", fetch_bytes_per_second=4 * RATE)

        def read(client_id: str) -> tuple[float, int]:
            """Return seconds and the delay that it was told, for all 20 MB."""
            began, count = time.monotonic(), 0
            with SyncConsumer(broker.address, client_id=client_id) as consumer:
                consumer.subscribe(["t"])
                while count < 2000:
                    count += len(consumer.poll())
                return time.monotonic() - began, consumer.metrics()["throttled_ms"]

        def expect_seconds(client_id: str, most: float) -> tuple[float, int]:
            """Read all again while it takes longer: a pause of the machine spoils one measure."""
            measures = []
            for _ in range(MEASURES_MAX):
                measures.append(read(client_id))
                if measures[-1][0] < most:
                    return measures[-1]
            pytest.fail(f"seconds and delays: {measures}")

        seconds, told_ms = expect_seconds("slow", 20_000_000 / (4 * RATE) + 1.5)
        # The last response is delayed by nothing.
        assert seconds > 20_000_000 / (4 * RATE) - 0.5
        assert told_ms > 1000
        seconds, told_ms = expect_seconds("free", 1.5)
        assert told_ms == 0


def test_a_client_that_keeps_the_broker_busy_is_slowed_and_no_other(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t")
        admin.set_quota("busy", client_id="busy", request_percent=1)
        with load(broker.address, "t", "busy") as busy, load(broker.address, "t", "free") as free:
            wait_until(lambda: busy.producer.metrics()["throttled_ms"] > 0, "it is told")
            busy_rate, free_rate = rates_of(busy, free, seconds=3)
            assert busy_rate < free_rate / 3
            (use,) = admin.describe_quotas(["busy"])["busy"].uses
            assert (use.kind, use.client_id, use.limit_per_second) == ("request", "busy", 10_000)
            assert use.used_per_second > 0
            assert free.producer.metrics()["throttled_ms"] == 0


def test_a_topics_quota_is_for_all_its_producers_together(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t")
        admin.create_topic("u")
        admin.set_quota("t", topic="t", produce_bytes_per_second=RATE)
        with (
            load(broker.address, "t", "one") as one,
            load(broker.address, "t", "two") as two,
            load(broker.address, "u", "other") as other,
        ):
            wait_until(lambda: one.producer.metrics()["throttled_ms"] > 0, "it is told")
            wait_until(lambda: two.producer.metrics()["throttled_ms"] > 0, "it is told")
            expect_rates(
                *(one, two, other),
                seconds=4,
                are_right=lambda first, second, third: (
                    is_about(first + second, RATE)
                    and min(first, second) > RATE / 4
                    and third > 4 * RATE
                ),
            )


def test_the_command_line_sets_lists_describes_and_deletes(start_broker: StartBroker) -> None:
    broker = start_broker()
    millrace = CommandLine(broker.address)
    assert "no quotas yet" in millrace.run("quota", "list").stderr
    said = millrace.ok(
        "quota", "set", "a", "--client-id", "app", "--produce", "1.5MB", "-o", "json"
    )
    assert said
    assert json.loads(millrace.ok("quota", "list", "-o", "json")) == [json.loads(said)]
    table = millrace.ok("quota", "list")
    assert "client id app" in table
    shown = json.loads(millrace.ok("quota", "describe", "a", "-o", "json"))
    assert shown["uses"] == []
    both = millrace.run("quota", "set", "b", "--client-id", "app", "--fetch", "1MB")
    assert both.exit_code == ExitCode.FAILED
    assert "INVALID_QUOTA" in both.stderr
    for rate in ("0", "-1", "1PB", "fast"):
        wrong = millrace.run("quota", "set", "b", "--principal", "p", f"--fetch={rate}")
        assert wrong.exit_code in (ExitCode.FAILED, ExitCode.USAGE)
        assert "bytes a second" in wrong.stderr
    assert millrace.run("quota", "set", "b", "--topic", "t", "--each-topic").exit_code == (
        ExitCode.USAGE
    )
    assert json.loads(millrace.ok("quota", "delete", "a", "-o", "json")) == {"deleted": "a"}
    for command in ("describe", "delete"):
        gone = millrace.run("quota", command, "a")
        assert gone.exit_code == ExitCode.NOT_FOUND
        assert "millrace quota list" in gone.stderr


def test_the_client_refuses_a_bad_quota_before_it_asks(start_broker: StartBroker) -> None:
    with SyncAdmin(start_broker().address) as admin:
        for limit in (0, -5, 1 << 62):
            with pytest.raises(InvalidQuotaError):
                admin.set_quota("q", client_id="c", produce_bytes_per_second=limit)
        with pytest.raises(InvalidQuotaError):
            admin.set_quota("q", produce_bytes_per_second=5000)
        assert admin.list_quotas() == []
