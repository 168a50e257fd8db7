"""What readers of both isolations get of a log on a disk, beside what its writers have said.

The log answers as a broker does: batches of any size up to the last stable offset, and the aborted
transactions of what it sends. The consumer's machine reads. Meanwhile transactions go on, segments
are closed, and the log is opened again, with its indexes and without.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, LogOnDisk
from tests.fakes.reading_program import ReadingProgram
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.transaction_log import TransactionLog

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import Offset, TopicPartition
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.records.header import HEADER_BYTES, parse_header
from millrace.core.records.markers import AbortedTransaction

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200, checkpoint_bytes=100_000)


class StoredLog:
    """The same batches on a disk, and what that log answers readers."""

    def __init__(self, written: TransactionLog) -> None:
        self.place: TopicPartition = TOPIC_PARTITION
        self._written = written
        self._disk = Disk(0)
        self._opened = LogOnDisk(self._disk, CONFIG)
        self._count = 0

    def take(self) -> None:
        """Append what was written since; all of it is replicated at once."""
        new = self._written.stored()[self._count :]
        self._count += len(new)
        for _, _, data in new:
            batch = memoryview(data)
            stamped = StampedBatch.of(
                parse_header(batch), data[:HEADER_BYTES], batch[HEADER_BYTES:]
            )
            self._opened.append(stamped)
        self._opened.log.high_watermark = self._opened.log.log_end_offset

    def open_again(self) -> None:
        self._opened.checkpoint()
        self._opened.directory.close(clean=True)
        self._disk.restart()
        self._opened = LogOnDisk(self._disk, CONFIG)
        self._opened.log.high_watermark = self._opened.log.log_end_offset

    def close_segment(self) -> None:
        self._opened.log.writer.roll(NOW)

    def lose_indexes(self) -> None:
        self._opened.checkpoint()
        for found in self._opened.log.segments:
            found.index.is_damaged = found.index.verify() > 0

    @property
    def end_offset(self) -> Offset:
        return self._opened.log.log_end_offset

    @property
    def last_stable_offset(self) -> Offset:
        return self._opened.log.undecided.last_stable_offset(self.end_offset)

    def read(self, offset: int, end_offset: int, batches_max: int) -> tuple[bytes, Offset]:
        reader = self._opened.log.reader
        plan = reader.plan_read(Offset(offset), batches_max * 150, Offset(end_offset))
        assert plan is not None
        return reader.read(plan), plan.end_offset

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        end = min(end, self.last_stable_offset)
        return self._opened.log.reader.aborted(Offset(start), Offset(end))


PRODUCERS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.none() | PRODUCERS,
        st.integers(1, 4),
        st.sampled_from(CODEC_NAMES),
        st.booleans(),
    ),
    st.tuples(st.just("append"), PRODUCERS, st.just(2), st.just("none"), st.booleans()),
    st.tuples(st.just("end"), st.sets(PRODUCERS, min_size=1), st.booleans()),
    st.tuples(st.just("answer"), st.integers(1, 5)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["lose connection", "open again", "close segment", "lose indexes"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=80), st.booleans())
def test_a_reader_of_a_log_sees_what_is_committed_and_in_order(
    steps: list[Any], read_committed: bool
) -> None:
    written = TransactionLog(TOPIC_PARTITION)
    stored = StoredLog(written)
    program = ReadingProgram(stored, read_committed=read_committed)
    for kind, *what in steps:
        match kind:
            case "append":
                producer, count, codec, as_kafka = what
                values = [b"%d" % (written.end_offset + number) * 9 for number in range(count)]
                written.append(values, producer, codec=codec, as_kafka=as_kafka)
            case "end":
                written.end(sorted(what[0]), is_committed=what[1])
            case "answer":
                program.answer(what[0])
            case "take":
                program.take(what[0])
            case "lose connection":
                program.lose_connection()
            case "open again":
                stored.open_again()
            case "close segment":
                stored.close_segment()
            case _:
                stored.lose_indexes()
        stored.take()
        assert stored.last_stable_offset == written.last_stable_offset
        program.step()
        seen = written.seen(0, read_committed=read_committed)
        assert program.seen == seen[: len(program.seen)]
    program.read_all()
    program.take()
    assert program.seen == written.seen(0, read_committed=read_committed)
    assert program.position == program.end_offset
