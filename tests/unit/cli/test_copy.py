"""From where a copy goes on: after what is acknowledged, and after what was not to be copied."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millrace.cli.commands.copy import _Copier, _Keeper, _run
from millrace.cli.console.failures import Failure
from millrace.cli.console.interruption import Interrupted, Interruption
from millrace.cli.transfer.reading import Reader
from millrace.client import Position
from millrace.core.errors import MessageTooLargeError, MillraceError, UnknownTopicOrPartitionError
from millrace.core.topics import PartitionName

ZERO, ONE = ("source", 0), ("source", 1)


class Batch:
    """A batch on its way; the test says when it arrives."""

    def __init__(self) -> None:
        self.refused: dict[int, MillraceError] | None = None

    def done(self) -> bool:
        return self.refused is not None

    def result(self, timeout_s: float | None) -> None:
        if self.refused is None:
            raise TimeoutError
        for error in self.refused.values():
            raise error

    def errors(self) -> dict[int, MillraceError]:
        return self.refused or {}


class Copy:
    """Polls, and a copier of the records with the key `a`."""

    def __init__(self, records_max: int | None = None) -> None:
        self.polls: list[list[Any]] = []
        self.sent: list[Batch] = []
        reader = Reader(self, None, keys=[b"a"], records_max=records_max)  # type: ignore[arg-type]
        self.copier = _Copier(
            self,  # type: ignore[arg-type]
            "destination",
            Interruption(),
            SimpleNamespace(look=lambda _: None),  # type: ignore[arg-type]
            starts={ZERO: 5, ONE: 0},
            passed=reader.passed,
            partitions=2,
        )
        self.reader = reader

    def read(self, *batches: tuple[PartitionName, int, str]) -> None:
        """Read batches: where each is from, its first offset, and a key for each record."""
        self.polls = [[fetched(*batch) for batch in batches]]
        stop = Interruption()
        self.reader.run(
            self.copier,
            lambda: stop.on_signal(signal.SIGINT, None),
            is_shown=False,
            interruption=stop,
        )

    # As a consumer and a producer.

    def poll_batches(self, _: int) -> list[Any]:
        return self.polls.pop()

    def awaited_partitions(self) -> Sequence[PartitionName]:
        return ()

    def send_batch(self, topic: str, records: pa.RecordBatch, partition: int | None) -> Batch:
        self.sent.append(Batch())
        return self.sent[-1]


def fetched(place: PartitionName, first: int, keys: str) -> Any:
    columns = {
        "offset": pa.array(range(first, first + len(keys)), pa.int64()),
        "key": pa.array([key.encode() for key in keys], pa.binary()),
        "value": pa.array([b"v"] * len(keys), pa.binary()),
        "timestamp": pa.array([1] * len(keys), pa.int64()),
    }
    return SimpleNamespace(
        topic=place[0], partition=place[1], records=pa.RecordBatch.from_pydict(columns)
    )


def test_records_with_other_keys_are_not_read_again() -> None:
    copy = Copy()
    assert copy.copier.next_offsets == {ZERO: 5, ONE: 0}
    copy.read((ZERO, 5, "bbb"), (ONE, 0, "ab"))
    assert copy.copier.next_offsets == {ZERO: 8, ONE: 0}, "one is on its way"
    copy.sent[0].refused = {}
    copy.copier.settle_done()
    assert copy.copier.next_offsets == {ZERO: 8, ONE: 2}


def test_what_is_on_its_way_holds_back_what_is_read_after_it() -> None:
    copy = Copy()
    copy.read((ZERO, 5, "ba"), (ZERO, 7, "bb"))
    assert copy.copier.next_offsets[ZERO] == 5
    copy.read((ZERO, 9, "ab"))
    copy.sent[0].refused = {}
    copy.copier.settle_done()
    assert copy.copier.next_offsets[ZERO] == 7


def test_a_refused_record_is_where_a_copy_goes_on() -> None:
    copy = Copy()
    copy.read((ZERO, 5, "baab"), (ONE, 0, "b"))
    copy.sent[0].refused = {1: MessageTooLargeError("too large")}
    with pytest.raises(MessageTooLargeError):
        copy.copier.settle_done()
    assert copy.copier.next_offsets == {ZERO: 7, ONE: 1}


def test_a_copy_of_a_source_that_has_grown_says_how_many_partitions_the_destination_needs() -> None:
    copy = Copy()
    copy.read((("source", 2), 0, "a"))
    copy.sent[0].refused = {0: UnknownTopicOrPartitionError("no such partition")}
    with pytest.raises(Failure, match="has grown to 3 partitions") as failed:
        copy.copier.settle_done()
    assert failed.value.hint.startswith("give destination 3 partitions")


def test_records_beyond_the_wanted_number_are_left_for_the_next_copy() -> None:
    copy = Copy(records_max=2)
    copy.read((ZERO, 5, "baabab"), (ONE, 0, "bb"))
    copy.sent[0].refused = {}
    copy.copier.settle_all(None)
    assert copy.copier.copied.records == 2
    assert copy.copier.next_offsets == {ZERO: 8, ONE: 0}


class Positions:
    """Keeps the positions of a named copy, as a client for administration does.

    Args:
        before_commit: called first by each commit; may wait.
    """

    def __init__(self, before_commit: Callable[[], object] = lambda: None) -> None:
        self._before_commit = before_commit
        self.offsets: dict[PartitionName, int] = {}

    def commit_positions(self, name: str, positions: Mapping[PartitionName, Position]) -> None:
        self._before_commit()
        self.offsets |= {place: position.offset for place, position in positions.items()}


class Unanswered(Batch):
    """A batch that a dead broker has."""

    def result(self, timeout_s: float | None) -> None:
        if not self.done():
            threading.Event().wait(timeout_s)
        super().result(timeout_s)


class Stuck(Copy):
    """A copy whose destination acknowledges one batch, and is dead from then on."""

    def send_batch(self, topic: str, records: pa.RecordBatch, partition: int | None) -> Batch:
        if len(self.sent) == 2:  # The producer's memory is full.
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(20)
        self.sent.append(Unanswered())
        self.sent[0].refused = {}
        return self.sent[-1]

    def run(self, positions: Positions) -> None:
        self.polls = [[fetched(ZERO, 5, "aa"), fetched(ZERO, 7, "a"), fetched(ZERO, 8, "a")]]
        keeper = _Keeper(positions, "name", "mark", self.copier)  # type: ignore[arg-type]
        with pytest.raises(Interrupted):
            _run(self.reader, self.copier, keeper, Interruption(within_s=0.05), "title")


@pytest.mark.parametrize("seconds", [0, 0.5], ids=["at once", "later than the alarm repeats"])
def test_a_copy_that_a_signal_ends_keeps_what_a_dead_destination_had_acknowledged(
    seconds: float,
) -> None:
    positions = Positions(lambda: threading.Event().wait(seconds))
    Stuck().run(positions)
    assert positions.offsets == {ZERO: 7, ONE: 0}


class Impatient(Copy):
    """A copy whose source fails; then its user presses Ctrl-C twice."""

    def poll_batches(self, _: int) -> list[Any]:
        if not self.polls:
            raise MessageTooLargeError("the source fails")
        return super().poll_batches(_)

    def send_batch(self, topic: str, records: pa.RecordBatch, partition: int | None) -> Batch:
        self.sent.append(CtrlCTwice())
        return self.sent[-1]


class CtrlCTwice(Batch):
    def result(self, timeout_s: float | None) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_that_end_the_wait_for_the_last_answers_leave_positions_and_the_first_error() -> (
    None
):
    copy, positions = Impatient(), Positions()
    copy.polls = [[fetched(ONE, 0, "bb"), fetched(ZERO, 5, "a")]]
    keeper = _Keeper(positions, "name", "mark", copy.copier)  # type: ignore[arg-type]
    with pytest.raises(MessageTooLargeError):
        _run(copy.reader, copy.copier, keeper, Interruption(within_s=60), "title")
    assert positions.offsets == {ZERO: 5, ONE: 2}
