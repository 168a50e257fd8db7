"""The product's log directory and partition log on the simulated disk, life after life.

Whatever the disk does, a life that opens the log finds everything that was flushed, unchanged, and
nothing that was never appended.
"""

import random

import pytest
from tests.fakes.disk import PowerCut
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.stamped_batches import bytes_of, stamped_batch
from tests.sim.disk import SimulatedDisk
from tests.sim.world import World

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import LogDirFailedError, StorageFullError
from millrace.core.ids import WallMs

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200, checkpoint_bytes=2000)
LIVES = 12
STEPS = 25


class Lives:
    """One disk, one log after another on it; `batches` is what the log should hold.

    Args:
        seed: of everything.
        evicts: whether a failed flush shows before the next life, as after a reboot.
    """

    def __init__(self, seed: int, *, evicts: bool = True) -> None:
        self.evicts = evicts
        self.dice = random.Random(seed)
        self.world = World(seed)
        self.disk = SimulatedDisk(self.world, "machine")
        self.batches: list[StampedBatch] = []
        self.flushed = 0
        self.seen: set[str] = set()
        """What happened at all, so that a test can check it."""

    def live(self) -> None:
        """Open the log, use it until the process ends, and check what is left."""
        self.opened = LogOnDisk(self.disk, CONFIG)
        log = self.opened.log
        assert log.log_end_offset >= self.flushed
        self.batches = [b for b in self.batches if b.next_offset <= log.log_end_offset]
        assert self.opened.batches() == {b.base_offset: bytes_of(b) for b in self.batches}
        self.epoch = log.leader_epochs.latest_epoch + 1
        try:
            for _ in range(self.dice.randrange(STEPS)):
                try:
                    self.step()
                except StorageFullError:
                    self.seen.add("full disk")
        except PowerCut:
            self.seen.add("power cut in a call")
            self.disk.cut_power()
        except LogDirFailedError:
            self.seen.add("failed disk")
            self.end()
            if self.evicts:
                self.disk.evict_all()
        else:
            self.end()
        self.disk.capacity = None

    def end(self) -> None:
        choice = self.dice.randrange(4)
        if choice == 0:
            self.seen.add("power cut")
            self.disk.cut_power()
        elif choice == 1:
            self.seen.add("kill and eviction")
            self.disk.restart()
            self.disk.evict_all()
        else:
            self.seen.add("kill")
            self.disk.restart()

    def step(self) -> None:
        choice = self.dice.randrange(20)
        if choice < 10:
            self.append()
        elif choice < 14:
            self.opened.log.flusher.flush()
            self.flushed = self.opened.end
        elif choice < 15:
            self.opened.checkpoint()
            self.flushed = self.opened.end
        elif choice < 16:
            self.opened.log.writer.roll(WallMs(1_000_000))
        else:
            self.fault()

    def append(self) -> None:
        batch = stamped_batch(
            self.opened.end,
            records=1 + self.dice.randrange(3),
            value=self.dice.randbytes(self.dice.randrange(250)),
            epoch=self.epoch,
        )
        self.batches = [b for b in self.batches if b.next_offset <= batch.base_offset]
        self.batches.append(batch)  # It may be there even if the append fails.
        try:
            self.opened.append(batch)
        except StorageFullError:
            assert self.opened.end == batch.base_offset
            self.batches.pop()
            raise

    def fault(self) -> None:
        choice = self.dice.randrange(4)
        if choice == 0:
            self.disk.cut_power_soon(1 + self.dice.randrange(6))
        elif choice == 1:
            self.disk.fail_next_flush()
        elif choice == 2:
            self.disk.fill(self.dice.randrange(600))
        else:
            self.disk.capacity = None


@pytest.mark.parametrize("seed", range(60))
def test_no_life_loses_what_an_earlier_one_flushed(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(LIVES):
        lives.live()


@pytest.mark.parametrize("seed", range(60))
def test_what_a_failed_flush_left_in_the_page_cache_is_not_trusted(seed: int) -> None:
    lives = Lives(seed, evicts=False)
    for _ in range(LIVES):
        lives.live()


def test_the_lives_meet_every_kind_of_end() -> None:
    seen: set[str] = set()
    for seed in range(20):
        lives = Lives(seed)
        for _ in range(LIVES):
            lives.live()
        seen |= lives.seen
    assert seen == {
        "failed disk",
        "full disk",
        "kill",
        "kill and eviction",
        "power cut",
        "power cut in a call",
    }
