"""A topic that Kafka's clients and Millrace's have written: Millrace's readers see one topic."""

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from tests.fakes.kafka_batches import Record, batch_of
from tests.integration.cli.command_line import CommandLine
from tests.integration.kafka.by_hand import Hand, produce_request
from tests.integration.kafka.ends import bootstrap, read
from tests.integration.running_broker import RunningBroker
from tests.integration.web.conftest import WebPage

from millrace.broker.kafka.requests import ApiKey
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

confluent = pytest.importorskip("confluent_kafka")

TOPIC = "both"
PLACE = (TOPIC, 0)
NOON = 1_700_000_000_000


class Written(NamedTuple):
    """A record of the topic, by its offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record(number: int) -> Written:
    """Return the record of an offset: cells are null, empty, or neither."""
    cells = [None, b"", b"%d" % number]
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if number % 4 == 0:
        headers = (("né", b"%d" % number), ("né", None), ("", b""))
    return Written(NOON + number, cells[number % 3], cells[number // 3 % 3], headers)


def batches() -> list[range]:
    """The offsets of each batch: a few records, and many."""
    found, begin = [], 0
    for number in range(24):
        size = 120 if number % 6 >= 4 else number % 6 + 1
        found.append(range(begin, begin + size))
        begin += size
    return found


COUNT = batches()[-1].stop


@pytest.fixture(scope="module")
def broker(kafka_broker: RunningBroker) -> RunningBroker:
    """A broker with the topic: one batch of Kafka's in every codec, one of columns, and so on."""
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(TOPIC, 1, 1, config={"retention.ms": "-1"})
    producers = [
        confluent.Producer(
            {
                "bootstrap.servers": bootstrap(kafka_broker),
                "compression.type": codec,
                "linger.ms": 1000,
            }
        )
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    ]
    with SyncProducer(kafka_broker.address, linger_ms=1000) as ours:
        for number, offsets in enumerate(batches()):
            producer = producers[number // 2 % len(producers)]
            for offset in offsets:
                timestamp, key, value, headers = record(offset)
                if number % 2:
                    ours.send(TOPIC, value, key, partition=0, timestamp=timestamp, headers=headers)
                else:
                    producer.produce(
                        TOPIC, value, key, 0, timestamp=timestamp, headers=list(headers)
                    )
            ours.flush()
            assert producer.flush(20) == 0
    return kafka_broker


def written(found: Any) -> Written:
    return Written(found.timestamp, found.key, found.value, found.headers)


@pytest.mark.parametrize("begin", [0, 1, 12, 60, 300, COUNT - 1])
def test_pythons_consumer_reads_records(broker: RunningBroker, begin: int) -> None:
    with SyncConsumer(broker.address) as consumer:
        consumer.assign([TOPIC])
        consumer.seek(PLACE, begin)
        offset = begin
        for found in consumer:
            assert (found.offset, written(found)) == (offset, record(offset))
            offset += 1
            if offset == COUNT:
                break


def test_pythons_consumer_reads_columns(broker: RunningBroker) -> None:
    rows: list[dict[str, Any]] = []
    with SyncConsumer(broker.address) as consumer:
        consumer.assign([TOPIC])
        consumer.seek(PLACE, 0)
        while len(rows) < COUNT:
            for found in consumer.poll_batches():
                found.records.validate(full=True)
                rows += found.records.to_pylist()
    assert [row.pop("offset") for row in rows] == list(range(COUNT))
    assert [
        Written(
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in rows
    ] == [record(offset) for offset in range(COUNT)]


def test_the_command_line_consumes(broker: RunningBroker) -> None:
    lines = CommandLine(broker.address).ok("consume", TOPIC, "--output", "json").splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["offset"] for row in found] == list(range(COUNT))

    def text(cell: bytes | None) -> str | None:
        return None if cell is None else cell.decode()

    for row in found:
        expected = record(row["offset"])
        assert (row["key"], row["value"]) == (text(expected.key), text(expected.value))


@pytest.fixture(scope="module")
def page(broker: RunningBroker) -> Iterator[WebPage]:
    running = WebPage(broker.address)
    yield running
    running.close()


def test_the_web_page_shows_records(page: WebPage) -> None:
    for offsets in batches():
        for offset in (offsets[0], offsets[-1]):
            query = urlencode({"topic": TOPIC, "partition": 0, "offset": offset})
            connection = http.client.HTTPConnection("localhost", page.port, timeout=60)
            connection.request("GET", f"/record?{query}")
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            assert answer.status == http.client.OK, body
            assert "2023-11-14" in body
            expected = record(offset)
            if expected.value:
                assert expected.value.decode() in body
            assert ("né" in body) == bool(expected.headers)


def test_a_record_is_found_by_its_time(broker: RunningBroker) -> None:
    with SyncAdmin(broker.address) as admin:
        for offset in range(0, COUNT, 37):
            assert admin.list_offsets(TOPIC, NOON + offset)[PLACE].offset == offset


def test_records_without_a_time_are_copied_and_have_that_of_their_copy(
    broker: RunningBroker, topic_name: str
) -> None:
    copied = f"{topic_name}.copy"
    command_line = CommandLine(broker.address)
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
    batch = batch_of([Record(b"0", timestamp=-1), Record(b"1", timestamp=NOON + 1)])
    bare = batch_of([Record(b"2", timestamp=-1)])
    with Hand(broker) as hand:
        for each in (batch, bare):
            answer = hand.ask(ApiKey.PRODUCE, 9, produce_request(topic_name, each))
            assert answer.responses[0].partition_responses[0].error_code == 0
    begun = time.time() * 1000 - 1
    result = command_line.run("copy", topic_name, copied, "--create")
    assert result.exit_code == 0, result.output
    assert "warning" in result.stderr, "the one that has a time is old"
    found = {record.value: record.timestamp for record in read(broker, copied, 3)}
    assert found.pop(b"1") == NOON + 1
    assert found.keys() == {b"0", b"2"}
    assert all(begun <= at <= time.time() * 1000 for at in found.values())
