"""Every byte of a small log torn, flipped or missing: what is served was appended, or nothing is.

After a crash, bytes at or beyond the recovery point may end the log early; damage before it may
only make the partition refuse. No damage anywhere may make the log serve other bytes than were
appended. Closed segments are looked at by the scrub, the active one by those who read it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import PARTITION, ROOT, LogOnDisk, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch

from millrace.broker.storage.epoch_checkpoint import write_epochs
from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import (
    CorruptBatchError,
    CorruptLogError,
    LogDirFailedError,
    UnsupportedFormatError,
)
from millrace.core.records.header import parse_header, verify_body
from millrace.core.replica.log.leader_epochs import LeaderEpochs

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
BATCHES = {
    offset: stamped_batch(
        offset,
        # Batches of both formats are of one length.
        value=b"four" if offset % 2 else bytes(56),
        as_kafka=offset % 2 == 1,
        epoch=offset // 3,
        producer_id=7,
        sequence=offset,
        timestamp=offset,
    )
    for offset in range(9)
}
APPENDED = {offset: bytes_of(batch) for offset, batch in BATCHES.items()}
(LENGTH,) = {len(batch) for batch in APPENDED.values()}
FLUSHED = 7
"""Batches up to here were flushed when the process died."""


def crashed() -> Disk:
    """Three segments of three batches, of which the last has one before the recovery point."""
    opened = LogOnDisk(Disk(), CONFIG)
    for offset, batch in BATCHES.items():
        opened.append(batch)
        if offset + 1 == FLUSHED:
            opened.checkpoint()
    assert len(opened.log.segments) == 3
    opened.disk.restart()
    return opened.disk


CRASHED = crashed()
ACTIVE = f"{PARTITION}/{6:020}.log"


@contextmanager
def nothing_is_changed(disk: Disk) -> Iterator[None]:
    before = {path: disk.contents(path) for path in disk.files() if path.endswith(".log")}
    yield
    assert before == {path: disk.contents(path) for path in disk.files() if path.endswith(".log")}


def served(disk: Disk) -> dict[int, bytes] | None:
    """Open and read everything as readers do, checksums included; None when that is refused."""
    try:
        with nothing_is_changed(disk):
            opened = LogOnDisk(disk, CONFIG)
    except (CorruptLogError, LogDirFailedError):
        return None
    except AssertionError:  # A torn tail was cut off.
        disk.restart()
        opened = LogOnDisk(disk, CONFIG)
    try:
        found = opened.batches(max_bytes=200)
    except CorruptLogError:
        return None
    for batch in found.values():
        verify_body(TOPIC_PARTITION, parse_header(batch), batch)
    assert opened.log.producer_states.entry(7) is not None  # type: ignore[arg-type]
    if 0 in found:
        assert list(opened.log.leader_epochs.entries) == [
            (epoch, 3 * epoch) for epoch in range(3) if 3 * epoch < opened.end
        ]
    return found


def test_a_crash_without_damage_loses_nothing() -> None:
    assert served(CRASHED.copy()) == APPENDED


@pytest.mark.parametrize("lost", range(1, 3 * LENGTH + 1))
def test_a_tail_torn_at_any_byte_ends_the_log_at_the_last_whole_batch(lost: int) -> None:
    disk = CRASHED.copy()
    whole = disk.contents(ACTIVE)
    disk.write(ACTIVE, whole[:-lost])
    kept = 9 - -(-lost // LENGTH)
    found = served(disk)
    if kept >= FLUSHED:
        assert found == {offset: APPENDED[offset] for offset in range(kept)}
        assert disk.size(ACTIVE) == (kept - 6) * LENGTH
    else:
        assert found is None


@pytest.mark.parametrize(
    "garbage", [b"\0" * 700, b"MRB\x01" + b"\xff" * 200, b"MRB\x02" + b"\xff" * 200, b"x"]
)
def test_garbage_after_the_tail_is_cut_off(garbage: bytes) -> None:
    disk = CRASHED.copy()
    disk.write(ACTIVE, disk.contents(ACTIVE) + garbage)
    assert served(disk) == APPENDED
    assert disk.size(ACTIVE) == 3 * LENGTH


def batch_lost_to(path: str, byte: int) -> int:
    return int(path[-24:-4]) + byte // LENGTH


@pytest.mark.parametrize("path", [path for path in CRASHED.files() if path.endswith(".log")])
def test_a_flipped_bit_of_a_segment_is_never_served(path: str) -> None:
    for byte in range(CRASHED.size(path)):
        disk = CRASHED.copy()
        disk.flip_bit(path, byte, byte % 8)
        lost = batch_lost_to(path, byte)
        if lost >= FLUSHED:
            assert served(disk) == {offset: APPENDED[offset] for offset in range(lost)}
            continue
        with pytest.raises((CorruptLogError, CorruptBatchError, UnsupportedFormatError)):
            read_or_scrub(LogOnDisk(disk, CONFIG))


def read_or_scrub(opened: LogOnDisk) -> None:
    """Scrub, and read as clients do: checking every checksum."""
    while opened.log.scrubber.scrub(1 << 20):
        pass
    for batch in opened.batches().values():
        verify_body(TOPIC_PARTITION, parse_header(batch), batch)


@pytest.mark.parametrize("path", [path for path in CRASHED.files() if not path.endswith(".log")])
def test_a_flipped_bit_of_any_other_file_changes_nothing_that_is_served(path: str) -> None:
    for byte in range(CRASHED.size(path)):
        disk = CRASHED.copy()
        disk.flip_bit(path, byte, byte % 8)
        found = served(disk)
        assert found == APPENDED or (found is None and path == f"{ROOT}/identity")


@pytest.mark.parametrize("path", CRASHED.files())
def test_any_file_cut_short_at_any_byte_never_changes_what_is_served(path: str) -> None:
    for size in range(CRASHED.size(path)):
        disk = CRASHED.copy()
        disk.write(path, disk.contents(path)[:size])
        found = served(disk)
        if path.endswith(".log"):
            kept = batch_lost_to(path, size)
            expected = kept >= FLUSHED
            assert found == ({o: APPENDED[o] for o in range(kept)} if expected else None)
        else:
            assert found == APPENDED or (found is None and path == f"{ROOT}/identity")


@pytest.mark.parametrize("path", CRASHED.files())
def test_a_missing_file_is_rebuilt_or_refused(path: str) -> None:
    disk = CRASHED.copy()
    disk.unlink(path)
    found = served(disk)
    if path.endswith(".log") or path == f"{ROOT}/identity":
        assert found is None
    else:
        assert found == APPENDED


@pytest.mark.parametrize("first", [path for path in CRASHED.files() if path.endswith(".log")])
@pytest.mark.parametrize("second", [path for path in CRASHED.files() if path.endswith(".log")])
def test_segments_in_each_other_s_place_are_refused(first: str, second: str) -> None:
    disk = CRASHED.copy()
    contents = disk.contents(first), disk.contents(second)
    disk.write(first, contents[1])
    disk.write(second, contents[0])
    if first == second:
        assert served(disk) == APPENDED
        return
    with pytest.raises(CorruptLogError):
        read_or_scrub(LogOnDisk(disk, CONFIG))


def test_a_stale_marker_does_not_make_an_unclean_stop_clean() -> None:
    opened = LogOnDisk(Disk(), CONFIG)
    opened.append(BATCHES[0])
    opened.directory.close(clean=True)
    marker = opened.disk.contents(f"{ROOT}/clean-shutdown")
    opened = LogOnDisk(opened.disk, CONFIG)
    assert opened.directory.was_clean
    assert f"{ROOT}/clean-shutdown" not in opened.disk.files()
    opened.append(BATCHES[1])
    opened.checkpoint()
    opened.append(BATCHES[2])
    opened.disk.restart()
    opened.disk.write(f"{ROOT}/clean-shutdown", marker)
    assert not open_directory(opened.disk).was_clean


WITNESSES = [f"{ROOT}/recovery-checkpoint", f"{PARTITION}/{6:020}.index"] + [
    path for path in CRASHED.files() if path.endswith(".snapshot")
]


@pytest.mark.parametrize("witness", ["recovery-checkpoint", "6.index", "7.snapshot"])
def test_one_witness_of_what_was_flushed_is_enough(witness: str) -> None:
    disk = CRASHED.copy()
    disk.write(ACTIVE, disk.contents(ACTIVE)[: -2 * LENGTH - 1])
    for path in WITNESSES:
        if not path.endswith(witness):
            disk.unlink(path)
    assert served(disk) is None


def test_without_any_witness_the_log_ends_where_it_is_damaged() -> None:
    disk = CRASHED.copy()
    disk.write(ACTIVE, disk.contents(ACTIVE)[: -2 * LENGTH - 1])
    for path in WITNESSES:
        disk.unlink(path)
    assert served(disk) == {offset: APPENDED[offset] for offset in range(6)}


def test_an_index_without_its_segment_is_a_witness_too() -> None:
    disk = CRASHED.copy()
    for path in [*WITNESSES, ACTIVE]:
        if not path.endswith("6.index"):
            disk.unlink(path)
    assert served(disk) is None


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_process_wrote_survives_a_power_cut_once_the_next_one_flushed(
    seed: int,
) -> None:
    opened = LogOnDisk(Disk(seed), CONFIG)
    opened.append(BATCHES[0])
    opened.disk.restart()
    opened = LogOnDisk(opened.disk, CONFIG)
    assert opened.log.flushed_offset == 0
    assert opened.log.flusher.flush() == 1
    opened.disk.cut_power()
    assert served(opened.disk) == {0: APPENDED[0]}


def test_garbage_after_a_log_that_was_closed_in_order_is_refused() -> None:
    opened = LogOnDisk(CRASHED.copy(), CONFIG)
    opened.directory.close(clean=True)
    opened.disk.write(ACTIVE, opened.disk.contents(ACTIVE) + b"garbage")
    assert served(opened.disk) is None


def test_leader_epochs_that_begin_too_late_are_read_from_the_log_again() -> None:
    disk = CRASHED.copy()
    write_epochs(disk, PARTITION, TOPIC_PARTITION, LeaderEpochs([(2, 6)]))
    assert served(disk) == APPENDED
