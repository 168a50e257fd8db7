"""Readers are told what was aborted, whatever becomes of a segment's index meanwhile."""

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, LogOnDisk
from tests.fakes.stamped_batches import transactions

from millrace.broker.storage.log_config import LogConfig
from millrace.core.ids import Offset
from millrace.core.records.markers import AbortedTransaction

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200)


def written(count: int = 9) -> LogOnDisk:
    opened = LogOnDisk(Disk(), CONFIG)
    for batch in transactions(count):
        opened.append(batch)
    assert len(opened.log.segments) > 4
    return opened


def aborted(opened: LogOnDisk) -> list[AbortedTransaction]:
    return opened.log.reader.aborted(Offset(0), opened.end)


def test_a_log_without_aborted_transactions_looks_into_no_index() -> None:
    opened = LogOnDisk(Disk(), CONFIG)
    for batch in transactions(2):
        opened.append(batch)
    assert not opened.log.state.has_aborts
    assert aborted(opened) == []


def test_only_segments_that_concern_a_reader_are_looked_into() -> None:
    opened = written()
    for segment in opened.log.segments[:-1]:
        segment.index.close()
    found = opened.log.reader.aborted(Offset(0), Offset(4))
    assert [one.first_offset for one in found] == [3]
    loaded = [
        segment.base_offset
        for segment in opened.log.segments
        if opened.log.state.cache.get(segment.index) is not None
    ]
    assert len(loaded) == 1


@pytest.mark.parametrize("number", range(5))
def test_a_damaged_index_is_replaced_by_the_markers_themselves(number: int) -> None:
    opened = written()
    expected = aborted(opened)
    segment = opened.log.segments[number]
    opened.log.flusher.checkpoint()
    if opened.disk.exists(segment.index.path):
        opened.disk.flip_bit(segment.index.path, 70)
    segment.index.close()
    assert aborted(opened) == expected
    while opened.log.scrubber.scrub(1 << 20):
        pass
    assert aborted(opened) == expected
    opened.disk.cut_power()
    assert aborted(LogOnDisk(opened.disk, CONFIG)) == expected


def test_a_reader_of_a_segment_that_is_deleted_meanwhile_hears_what_was_aborted() -> None:
    opened = written()
    segment = opened.log.segments[1]
    before = segment.aborted(Offset(0), opened.end, may_block=True)
    assert before
    segment.index.discard()  # As retention does, before it retires the file.
    assert segment.aborted(Offset(0), opened.end, may_block=True) == before


def test_a_cut_that_the_disk_refused_leaves_the_aborted_transactions_known() -> None:
    opened = written()
    expected = aborted(opened)
    for segment in opened.log.segments[2:]:
        segment.index.discard()  # As a cut does, before it is certain.
    assert aborted(opened) == expected
    opened.log.writer.roll(NOW)
    opened.log.flusher.checkpoint()
    opened.disk.cut_power()
    again = LogOnDisk(opened.disk, CONFIG)
    assert aborted(again) == expected
