"""What a task that writes holds on to, whatever becomes of what it has sent."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.client import (
    AbortedError,
    BufferExhaustedError,
    DeliveryTimedOutError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import parse_sink_options
from millrace.spark.sink.writer import open_producer
from millrace.spark.sink.writing import Writing

MIB = 1 << 20
OPTIONS = parse_sink_options(
    {"bootstrap.servers": "nowhere:1", "topic": "clicks", "bufferBytes": "2MiB"}, Use.BATCH
)


class Handle:
    """Of rows that are acknowledged at once, or only while somebody waits for them."""

    def __init__(self, *, is_late: bool, error: MillraceError | None) -> None:
        self._is_done = not is_late
        self._error = error

    def done(self) -> bool:
        return self._is_done

    def result(self) -> None:
        self._is_done = True
        if self._error is not None:
            raise self._error

    def errors(self) -> dict[int, MillraceError]:
        return {} if self._error is None else {0: self._error}


class Producer:
    """Sends nothing; the first rows go to a partition that nobody leads for a while."""

    def __init__(self, error: MillraceError | None = None) -> None:
        self.sent = 0
        self._error = error

    def partitions_for(self, topic: str) -> list[int]:
        return [0]

    def send_batch(self, topic: str, records: pa.RecordBatch) -> Handle:
        self.sent += 1
        return Handle(is_late=self.sent == 1, error=self._error if self.sent == 1 else None)

    def flush(self) -> None:
        pass


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        values = pa.repeat(pa.scalar(b"v" * (MIB // 16)), 16)
        yield pa.RecordBatch.from_pydict({"key": [f"k{number}"] * 16, "value": values})


def writing(producer: Producer) -> Writing:
    given: Any = producer
    return Writing(given, OPTIONS)


def test_acknowledged_rows_after_one_that_waits_for_its_leader_are_not_held_without_bound() -> None:
    before = pa.total_allocated_bytes()
    held = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches(40):
            held.append(pa.total_allocated_bytes() - before)
            yield batch

    assert writing(Producer()).write(watched()).rows == 40 * 16
    assert 3 * MIB < max(held) < 7 * MIB  # Twice bufferBytes, and what Spark hands over.


def test_the_row_that_was_waited_for_is_named() -> None:
    producer = Producer(DeliveryTimedOutError("no leader"))
    with pytest.raises(DeliveryTimedOutError, match=r"row 0 of a task \(key 'k0'\) for topic 'cl"):
        writing(producer).write(batches(40))
    assert producer.sent < 8


def test_the_row_with_which_a_transaction_failed_is_named_and_not_one_that_failed_with_it() -> None:
    with_it = AbortedError("another record of the transaction failed")

    class Failing(Producer):
        def send_batch(self, topic: str, records: pa.RecordBatch) -> Handle:
            self.sent += 1
            error = MessageTooLargeError("too large") if self.sent == 3 else with_it
            return Handle(is_late=self.sent < 3, error=error)

    with pytest.raises(MessageTooLargeError, match=r"row 32 of a task \(key 'k2'\)"):
        writing(Failing()).write(batches(3))


def test_a_producer_that_takes_no_more_rows_is_told_by_the_row_with_which_it_began() -> None:
    """As in a transaction of which a row has failed."""
    error = MessageTooLargeError("too large")

    class Refusing(Producer):
        def send_batch(self, topic: str, records: pa.RecordBatch) -> Handle:
            self.sent += 1
            if self.sent == 3:
                raise error
            return Handle(is_late=self.sent == 1, error=self._error if self.sent == 2 else None)

    with pytest.raises(MessageTooLargeError, match=r"^row 16 of a task \(key 'k1'\).*too large"):
        writing(Refusing(error)).write(batches(3))


def test_rows_that_no_producer_takes_are_told_as_a_range() -> None:
    class Refusing(Producer):
        def send_batch(self, topic: str, records: pa.RecordBatch) -> Handle:
            self.sent += 1
            if self.sent == 2:
                raise MessageTooLargeError("too large")
            return Handle(is_late=False, error=None)

    with pytest.raises(
        MessageTooLargeError,
        match=r"^of the rows 16 to 31 of a task for topic 'clicks' some were not written: too lar",
    ):
        writing(Refusing()).write(batches(3))


def test_a_buffer_that_stays_full_is_told_with_the_options_of_the_sink() -> None:
    class Full(Producer):
        def send_batch(self, topic: str, records: pa.RecordBatch) -> Handle:
            raise BufferExhaustedError("buffer_memory=2097152 is used up")

    with pytest.raises(BufferExhaustedError, match=r"are bufferBytes and deliveryTimeoutMs\. What"):
        writing(Full()).write(batches(1))


def test_the_client_takes_the_largest_options() -> None:
    options = parse_sink_options(
        {
            "bootstrap.servers": "nowhere:65535, [::1]:1",
            "lingerMs": "1h",
            "batchBytes": str(16 * MIB - 1024),
            "bufferBytes": "1TiB",
            "deliveryTimeoutMs": str(2**31 - 1),
            "requestTimeoutMs": str(2**31 - 1),
        },
        Use.BATCH,
    )
    open_producer(options).close()
