"""Files of records are whole: also after Ctrl-C, and when nothing more comes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from millrace.cli.commands.consume import _opened, _read_as_member, _write_file
from millrace.cli.console.failures import Failure
from millrace.cli.console.interruption import Interrupted, Interruption
from millrace.cli.transfer.reading import Reader
from millrace.client import FetchedRecords, SyncConsumer
from millrace.core.ids import LeaderEpoch, Offset, TopicId
from millrace.core.records.columns import SCHEMA

PLACE = ("flights", 0)
DELETED = ("ships", 0)


class Consumer:
    """Has three records; then something happens at each further poll."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._position = 0

    def assignment(self) -> list[tuple[str, int]]:
        return [PLACE]

    def position(self, place: tuple[str, int]) -> int:
        return self._position

    def awaited_partitions(self) -> list[tuple[str, int]]:
        return []

    def poll_batches(self, timeout_ms: int) -> list[FetchedRecords]:
        if self._position == 3:
            self._then()
            return []
        self._position = 3
        return [fetched(0)]


class Member(Consumer):
    """A member of a group: has three records at each poll, and its coordinator takes its time."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.committed: dict[tuple[str, int], int] = {}

    def poll_batches(self, timeout_ms: int) -> list[FetchedRecords]:
        self._position += 3
        return [fetched(self._position - 3)]

    def subscribe(self, topics: object, **_: object) -> None:
        pass

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        threading.Event().wait(0.5)  # For longer than the alarm repeats.
        self.committed |= positions


def fetched(first: int) -> FetchedRecords:
    """Return three records."""
    row: dict[str, Any] = {"timestamp": 1000, "key": None, "value": b"v", "headers": []}
    rows = [{"offset": i, **row} for i in range(first, first + 3)]
    records = pa.RecordBatch.from_pylist(rows, SCHEMA)
    end = Offset(first + 3)
    return FetchedRecords(*PLACE, records, LeaderEpoch(0), end, TopicId(bytes(16)), False)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def write(
    path: Path,
    consumer: Consumer,
    end: int | None,
    timeout_s: float | None = None,
    *,
    more_ends: Mapping[tuple[str, int], int] | None = None,
    is_regex: bool = False,
    records_max: int | None = None,
) -> None:
    """Read up to an end, or for ever."""
    reader = Reader(
        cast(SyncConsumer, consumer),
        None if end is None else {PLACE: end, **(more_ends or {})},
        records_max=records_max,
        timeout_s=timeout_s,
    )

    def opened(stream: Any, name: str) -> Any:
        return _opened(stream, name, output="lines", key_separator=None, null_value=None)

    _write_file(reader, str(path), opened, is_endless=end is None, is_regex=is_regex)


def test_a_file_is_there_when_all_of_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flights.txt"
    write(path, Consumer(interrupt), 3)
    assert path.read_bytes() == b"v\nv\nv\n"
    assert capsys.readouterr().err == f"3 records to {path}\n"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_leaves_what_was_there_and_says_how_many_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flights.txt"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write(path, Consumer(interrupt), 10)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().err == f"3 records read, and {path} left as it was\n"


def test_what_was_not_read_to_its_end_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "flights.txt"
    with pytest.raises(Failure, match="nothing came for 0 s"):
        write(path, Consumer(lambda: None), 10, timeout_s=0)
    assert list(tmp_path.iterdir()) == []


class PassedOffsets(Consumer):
    """After its records come offsets of no record, slowly: as of aborted transactions."""

    def poll_batches(self, timeout_ms: int) -> list[FetchedRecords]:
        if self._position < 3:
            return super().poll_batches(timeout_ms)
        threading.Event().wait(0.05)
        self._position += 1
        return []


def test_offsets_without_records_are_something_that_comes(tmp_path: Path) -> None:
    path = tmp_path / "flights.txt"
    write(path, PassedOffsets(lambda: None), 9, timeout_s=0.2)
    assert path.read_bytes() == b"v\nv\nv\n"


def test_a_topic_that_is_deleted_meanwhile_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flights.txt"
    path.write_bytes(b"old")
    with pytest.raises(Failure, match="ships was deleted before it was read to its end"):
        write(path, Consumer(interrupt), 3, more_ends={DELETED: 5})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().err == f"3 records read, and {path} left as it was\n"


def test_a_topic_of_a_pattern_may_be_deleted_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "flights.txt"
    write(path, Consumer(interrupt), 3, more_ends={DELETED: 5}, is_regex=True)
    assert path.read_bytes() == b"v\nv\nv\n"


def test_a_deleted_topic_is_no_failure_where_max_is_reached_without_it(tmp_path: Path) -> None:
    path = tmp_path / "flights.txt"
    write(path, Member(), 100, more_ends={DELETED: 5}, records_max=5)
    assert path.read_bytes() == b"v\n" * 5


@pytest.mark.parametrize(
    ("then", "timeout_s", "error"),
    [(interrupt, None, KeyboardInterrupt), (lambda: None, 0, Failure)],
)
def test_what_has_no_end_is_whole_however_it_ended(
    tmp_path: Path,
    then: Callable[[], object],
    timeout_s: float | None,
    error: type[BaseException],
) -> None:
    path = tmp_path / "flights.txt"
    with pytest.raises(error):
        write(path, Consumer(then), None, timeout_s)
    assert path.read_bytes() == b"v\nv\nv\n"


def test_a_member_whose_output_is_stuck_still_commits_what_was_taken_of_it() -> None:
    member = Member()

    class StuckWriter:
        """Its reader takes the records of one batch, and stops to read."""

        taken = 0

        def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
            if self.taken:
                interrupt()
                threading.Event().wait(20)
            self.taken += records.num_rows

    @contextmanager
    def opened(stream: Any) -> Iterator[Any]:
        yield StuckWriter()

    with Interruption(within_s=0.05) as interruption, pytest.raises(Interrupted):
        _read_as_member(
            cast(SyncConsumer, member),
            ("flights",),
            opened,
            partial(Reader, records_max=None),
            interruption,
            is_regex=False,
        )
    assert member.committed == {PLACE: 3}
