"""The simulated disk: the cost of calls, its owner, and its failures."""

import errno
from collections.abc import Callable

import pytest
from tests.fakes.disk import SECTOR_BYTES, PowerCut
from tests.sim.machines.clocks import MachineClock
from tests.sim.machines.disk import SimulatedDisk
from tests.sim.machines.threads import SimulatedThread
from tests.sim.world import SECOND, World


def disk_of(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(World(seed), "m")
    disk.open("/f", create=True)
    disk.fsync_directory("/")
    return disk


def test_calls_take_time_and_a_flush_the_most() -> None:
    world = World(1)
    disk = SimulatedDisk(world, "m")
    took: list[int] = []

    def measured(call: Callable[[], object]) -> None:
        began = world.now
        call()
        took.append(world.now - began)

    def run() -> None:
        file = disk.open("/f", create=True)
        measured(lambda: file.append([b"x" * 65536]))
        measured(file.fdatasync)
        disk.times.stall_us = 2 * SECOND
        measured(file.fdatasync)

    SimulatedThread(world, "t", run, lambda step: step(), MachineClock(world, "m").after)
    world.run_until(10 * SECOND)
    append, flush, slow = took
    assert 100 <= append <= 300
    assert flush >= 300 + disk.times.call_us
    assert slow >= 4 * SECOND  # Twice: the call, and the flush.


def test_a_dead_process_s_file_is_of_no_use_and_its_lock_is_gone() -> None:
    disk = disk_of()
    file, lock = disk.open("/f"), disk.lock("/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")
    disk.restart()
    for use in (lambda: file.append([b"x"]), file.fdatasync, lambda: file.pread(1, 0)):
        with pytest.raises(AssertionError):
            use()
    disk.lock("/lock")
    lock.release()  # By the dead process: the live one keeps its lock.
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")


def test_a_failed_flush_is_lost_though_the_next_one_succeeds() -> None:
    disk = disk_of()
    file = disk.open("/f")
    file.append([b"a" * SECTOR_BYTES])
    disk.fail_next_flush()
    with pytest.raises(OSError, match="error"):
        file.fdatasync()
    assert file.pread(1, 0) == b"a"
    file.append([b"b"])
    file.fdatasync()
    assert file.pread(1, 0) == b"a"  # The page cache still has it.
    disk.evict_all()
    assert file.pread(1, 0) == b"\0"
    assert file.pread(1, SECTOR_BYTES) == b"b"
    assert disk.failures == 1


def test_a_page_that_is_written_again_is_flushed_again() -> None:
    disk = disk_of()
    file = disk.open("/f")
    file.append([b"a" * 100])
    disk.fail_next_flush()
    with pytest.raises(OSError, match="error"):
        file.fdatasync()
    file.append([b"b"])
    file.fdatasync()
    disk.evict_all()
    disk.cut_power()
    assert disk.contents("/f") == b"a" * 100 + b"b"


def test_a_power_cut_keeps_sectors_of_its_own_choice() -> None:
    kept: set[bytes] = set()
    for seed in range(200):
        disk = disk_of(seed)
        file = disk.open("/f")
        file.append([b"d" * SECTOR_BYTES])
        file.fdatasync()
        file.append([b"u" * 3 * SECTOR_BYTES])
        disk.cut_power()
        contents = disk.contents("/f")
        assert contents[:SECTOR_BYTES] == b"d" * SECTOR_BYTES
        kept.add(bytes(contents[at] for at in range(0, len(contents), SECTOR_BYTES)))
    assert {b"d", b"duuu"} <= kept
    assert any(b"\0u" in sectors for sectors in kept), "a later sector without an earlier one"


def test_a_power_cut_keeps_names_of_its_own_choice() -> None:
    kept: set[tuple[str, ...]] = set()
    for seed in range(200):
        disk = disk_of(seed)
        disk.open("/a", create=True)
        disk.open("/b", create=True)
        disk.unlink("/f")
        disk.rename("/b", "/c")
        disk.cut_power()
        kept.add(tuple(disk.files()))
    assert {("/f",), ("/a", "/c"), ("/c", "/f"), ("/a", "/f")} <= kept
    assert not any("/b" in names and "/c" in names for names in kept)


def test_flushed_names_survive() -> None:
    for seed in range(50):
        disk = disk_of(seed)
        disk.make_directory("/d")
        disk.open("/d/a", create=True)
        disk.fsync_directory("/d")
        disk.fsync_directory("/")
        disk.cut_power()
        assert disk.files() == ["/d/a", "/f"]


@pytest.mark.parametrize("path", ["/gone/d", "/f/d"])
def test_a_directory_is_made_where_its_parent_is_and_nowhere_else(path: str) -> None:
    """As a real one: what was mounted there and is gone is not replaced."""
    disk = disk_of()
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        disk.make_directory(path)
    disk.mount("/data/log")
    disk.make_directory("/data/log/p")
    disk.cut_power()
    assert disk.exists("/data/log"), "who prepared the machine flushed it"


def test_power_goes_at_the_chosen_call() -> None:
    disk = disk_of()
    file = disk.open("/f")
    disk.cut_power_soon(2)
    file.append([b"a"])
    with pytest.raises(PowerCut):
        file.append([b"b"])


def test_a_full_disk_writes_what_fits_and_then_refuses() -> None:
    disk = disk_of()
    file = disk.open("/f")
    disk.fill(3)
    assert file.append([b"abcde"]) == 3
    with pytest.raises(OSError, match="space") as full:
        file.append([b"f"])
    assert full.value.errno == errno.ENOSPC
    assert disk.failures == 2
    disk.capacity = None
    assert file.append([b"f"]) == 1


def test_reads_and_writes_fail_so_often() -> None:
    disk = disk_of()
    file = disk.open("/f")
    disk.writes_to_fail = 1
    with pytest.raises(OSError, match="error"):
        file.append([b"a"])
    file.append([b"a"])
    disk.reads_to_fail = 2
    for _ in range(2):
        with pytest.raises(OSError, match="error"):
            file.pread(1, 0)
    assert file.pread(1, 0) == b"a"
    disk.is_read_only = True
    with pytest.raises(OSError, match="Read-only"):
        file.append([b"b"])


def test_a_write_that_went_astray_lies_elsewhere() -> None:
    disk = disk_of()
    disk.write("/g", b"g" * 2 * SECTOR_BYTES)
    disk.write("/f", b"f" * SECTOR_BYTES)
    disk.copy_sector("/f", 0, "/g", SECTOR_BYTES)
    assert disk.contents("/g") == b"g" * SECTOR_BYTES + b"f" * SECTOR_BYTES


def test_a_new_disk_is_empty() -> None:
    disk = disk_of()
    file = disk.open("/f")
    disk.wipe()
    assert disk.files() == []
    with pytest.raises(AssertionError):
        file.append([b"a"])
