"""A disk whose flushes take 2 s and more are slow; a reading a second."""

from collections.abc import Iterable

from millrace.core.ids import MonotonicMs
from millrace.core.metadata.model import Reluctance
from millrace.core.replica.replication.disk_health import DiskHealth, DiskReading

NONE, SLOW, FULL = Reluctance.NONE, Reluctance.SLOW_DISK, Reluctance.FULL_DISK
FAST = DiskReading(flushes_ms=(5,))
LATE = DiskReading(flushes_ms=(3000,))
REFUSED = DiskReading(was_full=True)
QUIET = DiskReading()


class Watched:
    """A disk that is read once a second."""

    def __init__(self, slow_flush_ms: int = 2000) -> None:
        self.health = DiskHealth(slow_flush_ms)
        self.second = 0

    def read(self, *readings: DiskReading, has_room: bool = True) -> list[Reluctance]:
        found = []
        for reading in readings:
            self.second += 1
            now = MonotonicMs(self.second * 1000)
            found.append(self.health.on_reading(reading, now, has_room=has_room))
        return found

    def seconds_until(self, reluctance: Reluctance, reading: DiskReading = QUIET) -> int:
        """Repeat a reading until this is the reluctance; return how often."""
        for count in range(1, 2000):
            if self.read(reading) == [reluctance]:
                return count
        raise AssertionError(f"never {reluctance!r}")


def test_three_slow_flushes_of_the_last_ten_are_too_many() -> None:
    assert Watched().read(LATE, LATE, FAST, FAST, LATE) == [NONE, NONE, NONE, NONE, SLOW]
    seldom: Iterable[DiskReading] = [FAST, FAST, FAST, FAST, LATE] * 20
    assert set(Watched().read(*seldom)) == {NONE}


def test_flushes_below_the_setting_are_never_slow() -> None:
    assert set(Watched().read(*[DiskReading(flushes_ms=[1999] * 10)] * 30)) == {NONE}
    assert set(Watched(slow_flush_ms=-1).read(*[LATE] * 30)) == {NONE}


def test_slow_flushes_of_long_ago_do_not_count() -> None:
    disk = Watched()
    for _ in range(5):
        assert disk.read(LATE) == [NONE]
        disk.read(*[QUIET] * 40)


def test_a_flush_that_hangs_counts_again_with_every_reading() -> None:
    disk = Watched()
    hanging = [DiskReading(under_way_ms=1000 * seconds) for seconds in range(1, 6)]
    assert disk.read(*hanging) == [NONE, NONE, NONE, SLOW, SLOW]


def test_a_process_that_stood_still_in_a_flush_is_not_a_slow_disk() -> None:
    disk = Watched()
    assert disk.read(DiskReading(under_way_ms=9000), DiskReading(flushes_ms=(9100,))) == [NONE] * 2


def test_it_is_over_ten_seconds_after_the_last_slow_flush() -> None:
    disk = Watched()
    assert disk.read(LATE, LATE, LATE)[-1] is SLOW
    assert disk.read(*[FAST] * 9) == [SLOW] * 9
    assert disk.read(LATE) == [SLOW]  # One is enough to go on.
    assert disk.read(*[QUIET] * 10) == [SLOW] * 9 + [NONE]


def test_a_refused_write_is_enough_and_it_lasts_until_there_is_room() -> None:
    disk = Watched()
    assert disk.read(REFUSED) == [FULL]
    assert set(disk.read(*[QUIET] * 100, has_room=False)) == {FULL}
    assert disk.read(*[QUIET] * 10) == [FULL] * 9 + [NONE]


def test_a_full_disk_becomes_a_slow_one_only_as_any_other_does() -> None:
    disk = Watched()
    assert disk.read(REFUSED, LATE, LATE, LATE) == [FULL, FULL, FULL, SLOW]


def test_with_each_relapse_the_pause_is_twice_as_long_up_to_a_bound() -> None:
    disk = Watched()
    pauses = []
    for _ in range(9):
        assert disk.read(REFUSED) == [FULL]
        pauses.append(disk.seconds_until(NONE))
        disk.read(*[FAST] * 5)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_a_disk_that_was_well_for_long_begins_with_the_short_pause_again() -> None:
    disk = Watched()
    for _ in range(3):
        disk.read(REFUSED)
        disk.seconds_until(NONE)
    disk.read(*[FAST] * 601)
    assert disk.read(REFUSED) == [FULL]
    assert disk.seconds_until(NONE) == 10
