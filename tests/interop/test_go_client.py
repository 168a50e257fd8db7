"""What others make from the .proto files and the documents works: here a client in Go."""

import base64
import json
import subprocess
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.unit.core.records import vectors

from millrace.client import Record, RecordHandle, SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.records.batch import open_batch
from millrace.core.records.header import parse_header

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS = 3
SECONDS_MAX = 100

Place = tuple[int, int]
Content = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp, key, value, headers."""

MOMENT = 1_700_000_000_000


HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("trace", b""), ("trace", None)],
    [("größe", b"\x80")],
]


def contents(count: int = 300) -> list[Content]:
    """Return records of every kind: null, empty and long cells, headers that repeat, any times."""
    return [
        (
            MOMENT + row % 7,
            (None, b"", b"key %d" % row, b"\xff\x00" * (row % 9))[row % 4],
            (b"value %d" % row, b"", None, b"long " * 200)[row // 4 % 4],
            HEADERS[row % 3],
        )
        for row in range(count)
    ]


def run(client: Path, *arguments: str, data: bytes = b"") -> list[Any]:
    """Run the client; return the lines of JSON that it wrote."""
    done = subprocess.run(
        [client, *arguments], input=data, capture_output=True, timeout=SECONDS_MAX, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 or (lines and "error" in lines[-1]), done.stderr.decode()
    return lines


def error_of(lines: list[Any]) -> Any:
    return lines[-1]["error"]


def as_json(records: Iterable[Content]) -> bytes:
    """Return records as the client takes them."""
    lines = [
        {
            "timestamp": timestamp,
            "key": _text(key),
            "value": _text(value),
            "headers": [{"name": name, "value": _text(cell)} for name, cell in headers],
        }
        for timestamp, key, value, headers in records
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def content_of(line: Any) -> Content:
    """Return a record that the client has written."""
    headers = [(header["name"], _bytes(header["value"])) for header in line["headers"] or []]
    return line["timestamp"], _bytes(line["key"]), _bytes(line["value"]), headers


def _text(cell: bytes | None) -> str | None:
    return None if cell is None else base64.b64encode(cell).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def end_of(admin: SyncAdmin, topic: str) -> int:
    """Return how many records were written to a topic."""
    return sum(found.offset for found in admin.list_offsets(topic).values())


def read(address: str, topic: str, count: int) -> dict[Place, Content]:
    """Return what the Python client reads, which has to be `count` records and no more."""
    found: list[Record] = []
    with SyncAdmin(address) as admin, SyncConsumer(address) as consumer:
        assert end_of(admin, topic) == count
        consumer.assign([topic], start="beginning")
        while len(found) < count:
            records = consumer.poll(timeout_ms=20_000)
            assert records, f"{len(found)} of {count} records came"
            found.extend(records)
    return {
        (record.partition, record.offset): (
            record.timestamp,
            record.key,
            record.value,
            list(record.headers),
        )
        for record in found
    }


@pytest.mark.parametrize("codec", CODECS)
def test_python_reads_what_go_writes(
    go_client: Path, shared_broker: RunningBroker, topic_name: str, codec: str
) -> None:
    to = ("-bootstrap", shared_broker.address, "-topic", topic_name)
    run(go_client, *to, "-partitions", str(PARTITIONS), "create")
    written = contents()
    # Each batch goes out twice, as after an answer that was lost, and is there once.
    said = run(
        go_client, *to, "-codec", codec, "-batch", "70", "-times", "2", "write",
        data=as_json(written),
    )  # fmt: skip
    assert sum(batch["count"] for batch in said) == len(written)
    found = read(shared_broker.address, topic_name, len(written))
    assert sorted(found.values(), key=repr) == sorted(written, key=repr)
    for (partition, _), (_, key, _, _) in found.items():
        assert key is None or partition == partition_of(key, PARTITIONS)


@pytest.mark.parametrize("codec", CODECS)
def test_go_reads_what_python_writes(
    go_client: Path, shared_broker: RunningBroker, topic_name: str, codec: str
) -> None:
    address = shared_broker.address
    with SyncAdmin(address) as admin:
        admin.create_topic(topic_name, partitions=PARTITIONS)
    expected: dict[Place, Content] = {}
    with SyncProducer(address, compression=codec, batch_size=4_096) as producer:
        handles = [
            (producer.send(topic_name, value, key, headers=headers, timestamp=timestamp), row)
            for row in contents(2_000)
            for timestamp, key, value, headers in [row]
        ]
        for handle, row in handles:
            metadata = handle.result(timeout=30)
            expected[metadata.partition, metadata.offset] = row
    # Credit for a few batches: most of them come because it was granted again.
    lines = run(go_client, "-bootstrap", address, "-topic", topic_name, "-credit", "20000", "read")
    assert len(lines) == len(expected)
    assert {(line["partition"], line["offset"]): content_of(line) for line in lines} == expected


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_go_reads_what_is_left_of_a_compacted_topic(
    go_client: Path, start_broker: StartBroker, topic_name: str, codec: str
) -> None:
    broker = start_broker({"storage.cleaner_backoff_ms": 50})
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0",
    }
    broker.create_topic(topic_name, partitions=PARTITIONS, config=config)
    sent: dict[int, tuple[RecordHandle, Content]] = {}
    count = 0
    for number in range(6):  # The last batches of a producer stay, also without records.
        with SyncProducer(broker.address, compression=codec, batch_size=1_024) as producer:
            for row in range(20 * number, 200):
                time, key, value = MOMENT + number, b"key %d" % row, b"round %d" % number
                headers = HEADERS[row % 3]
                handle = producer.send(topic_name, value, key, headers=headers, timestamp=time)
                sent[row] = handle, (time, key, value, headers)
                count += 1
    wait_until(
        lambda: broker.metrics()["millrace_cleaner_removed_records_total"] >= count - len(sent),
        "only the last record of each key is left",
    )
    expected: list[tuple[Place, Content]] = []
    for handle, content in sent.values():
        metadata = handle.result(timeout=30)
        expected.append(((metadata.partition, metadata.offset), content))
    to = ("-bootstrap", broker.address, "-topic", topic_name)
    lines = run(go_client, *to, "-credit", "20000", "read")
    found = [((line["partition"], line["offset"]), content_of(line)) for line in lines]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    for (partition, offset), (following, after) in pairwise(place for place, _ in found):
        assert partition != following or offset < after


OF_COLUMNS = [name for name in vectors.NAMES if parse_header(vectors.binary(name)).format == 1]
OF_KAFKA = [name for name in vectors.NAMES if name not in OF_COLUMNS]


@pytest.mark.parametrize("name", OF_KAFKA)
def test_go_which_knows_one_format_names_the_other_one(go_client: Path, name: str) -> None:
    done = subprocess.run(
        [go_client, "open", "00" * 16, "0"],
        input=vectors.binary(name), capture_output=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert (done.returncode, b"is no batch of version 1" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_go_opens_every_golden_batch(go_client: Path, name: str) -> None:
    described = vectors.description(name)
    lines = run(
        go_client, "open", described["topic_id"], str(described["partition"]),
        data=vectors.binary(name),
    )  # fmt: skip
    batch = vectors.binary(name)
    records = open_batch(vectors.partition_of(described), parse_header(batch), batch, 1 << 20)
    assert {line["offset"]: content_of(line) for line in lines} == {
        record["offset"]: (
            record["timestamp"],
            record["key"],
            record["value"],
            [(header["key"], header["value"]) for header in record["headers"]],
        )
        for record in records.to_pylist()
    }


def test_go_refuses_a_batch_that_was_changed(go_client: Path) -> None:
    described = vectors.description("zstd")
    for at in (20, 80, 100):
        changed = bytearray(vectors.binary("zstd"))
        changed[at] ^= 1
        done = subprocess.run(
            [go_client, "open", described["topic_id"], str(described["partition"])],
            input=changed,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 1
        assert b"checksum" in done.stderr


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_while_go_writes(
    go_client: Path, start_broker: StartBroker, topic_name: str
) -> None:
    broker = start_broker()
    to = ("-bootstrap", broker.address, "-topic", topic_name)
    run(go_client, *to, "create")
    written: list[Content] = [(MOMENT, None, b"%d" % row, []) for row in range(2_000)]
    writing = subprocess.Popen(
        [go_client, *to, "-batch", "1", "write"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert writing.stdin is not None
    writing.stdin.write(as_json(written))
    writing.stdin.close()
    try:
        with SyncAdmin(broker.address) as admin:
            wait_until(lambda: end_of(admin, topic_name) > 20, "some is there")
        assert writing.poll() is None, "it has written everything already"
        broker.kill()
        broker.start()
        assert writing.wait(SECONDS_MAX) == 0
    finally:
        writing.kill()
        writing.wait()
    found = read(broker.address, topic_name, len(written))
    assert [found[0, row] for row in range(len(written))] == written


def test_a_broker_of_another_cluster_is_told_from_all_other_refusals(
    go_client: Path, shared_broker: RunningBroker
) -> None:
    to = ("-bootstrap", shared_broker.address)
    (said,) = run(go_client, *to, "hello")
    assert run(go_client, *to, "-cluster", said["cluster_id"], "hello") == [said]
    refused = error_of(run(go_client, *to, "-cluster", "another", "hello"))
    assert refused["code"] == "ERROR_CODE_INCONSISTENT_CLUSTER_ID"
    assert "not of another" in refused["message"]


def test_the_broker_knows_who_calls(go_client: Path, shared_broker: RunningBroker) -> None:
    to = ("-bootstrap", shared_broker.address, "-topic", "of-interop")
    run(go_client, *to, "create")
    said = map(json.loads, shared_broker.log_path.read_text().splitlines())
    (line,) = (entry for entry in said if entry.get("entries") == "of-interop")
    assert (line["request"], line["client_id"]) == ("create_topics", "interop")
    assert line["software"].startswith("millrace-go-test grpc-go/")


def test_refusals_come_as_codes_and_say_what_to_do(
    go_client: Path, shared_broker: RunningBroker, topic_name: str
) -> None:
    to = ("-bootstrap", shared_broker.address, "-topic", topic_name)
    unknown = error_of(run(go_client, *to, "read"))
    assert unknown["code"] == "ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION"
    assert topic_name in unknown["message"]
    run(go_client, *to, "create")
    twice = error_of(run(go_client, *to, "create"))
    assert twice["code"] == "ERROR_CODE_TOPIC_ALREADY_EXISTS"
    too_large: Content = (MOMENT, None, b"x" * 2_000_000, [])
    refused = error_of(run(go_client, *to, "write", data=as_json([too_large])))
    assert refused["code"] == "ERROR_CODE_MESSAGE_TOO_LARGE"
    assert refused["appended"] == "APPENDED_NO"
    assert not refused["retriable"]
