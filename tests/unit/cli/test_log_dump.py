"""What `log dump` shows of transactions and of Kafka clients' batches."""

import json
from pathlib import Path

import pytest
from tests.fakes.transaction_log import TransactionLog

from millrace.broker.storage.inspection import PartitionFiles, SegmentFile, batches
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.cli.commands.log import _batch_document, _Place, _print_records
from millrace.core.ids import Offset, TopicId, TopicPartition

PLACE = TopicPartition(TopicId(b"t" * 16), 0)


@pytest.fixture
def place(tmp_path: Path) -> _Place:
    """A committed and an aborted transaction, and a record of neither."""
    log = TransactionLog(PLACE)
    log.append([b"a"])
    log.append([b"b", b"c"], 1, as_kafka=True)
    log.append([b"d"], 2)
    log.end([1], is_committed=True)
    log.end([2, 3], is_committed=False)
    data = b"".join(stored for _, _, stored in log.stored())
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    segment = SegmentFile(str(path), Offset(0), len(data))
    return _Place("t", PartitionFiles(PLACE, str(tmp_path), (segment,), None, False, None))


def test_each_batch_says_what_it_holds(place: _Place) -> None:
    found = [_batch_document(place, batch) for batch in batches(PosixFileSystem(), place.files)]
    kinds = [batch["kind"] for batch in found]
    assert kinds == ["records", "transaction", "transaction", "markers", "markers"]
    formats = [batch["format"] for batch in found]
    assert formats == ["columns", "kafka", "columns", "columns", "columns"]


def test_the_records_of_a_kafka_client_are_shown_as_any_others(
    place: _Place, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = PosixFileSystem()
    for batch in list(batches(files, place.files))[:2]:
        _print_records(files, place, batch)
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(line["offset"], line["value"]) for line in lines] == [(0, "a"), (1, "b"), (2, "c")]


def test_markers_are_shown_as_what_they_say(
    place: _Place, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = PosixFileSystem()
    for batch in batches(files, place.files, Offset(4)):
        _print_records(files, place, batch)
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [
        (line["offset"], line["marker"], line["producer_id"], line["first_offset"])
        for line in lines
    ] == [(4, "commit", 1, 1), (5, "abort", 2, 3), (6, "abort", 3, -1)]
    assert lines[0] == {
        "topic": "t",
        "partition": 0,
        "offset": 4,
        "marker": "commit",
        "producer_id": 1,
        "producer_epoch": 1,
        "coordinator_epoch": 1,
        "protocol": 2,
        "first_offset": 1,
        "last_offset": 2,
    }
