"""The thread of a simulated broker that writes: what waits is done in rounds, as one group commit.

A round does everything that was ordered before it began, in order, and tells the loop; then it
flushes each log once whose topic wants it, and tells the loop again. The loop hears of either when
the disk has taken its time, so followers may have what is not flushed here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.sim.log_witness import LogWitness
from tests.sim.machine import Machine

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import StorageError, StorageFullError
from millrace.core.ids import Offset

THREAD: Final = "append"
FULL_PAUSE_MS: Final = 200


@dataclass(slots=True)
class Target:
    """A log that is written to, and the thread's own count of failed writes."""

    log: PartitionLog
    is_flushed: bool
    generation: int = 0


@dataclass(slots=True)
class Written:
    """What became of one log in a round: its end, or what failed."""

    target: Target
    end_offset: Offset
    flushed_offset: Offset | None = None
    failed_at: Offset | None = None
    error: StorageError | None = None


@dataclass(slots=True)
class _Append:
    target: Target
    batches: Sequence[StampedBatch]
    generation: int


@dataclass(slots=True)
class _Change:
    target: Target
    job: Callable[[], object]
    done: Callable[[], object]


class Appender:
    """See the module.

    Args:
        machine: whose thread and disk.
        done: told of every log that a round wrote to.
        failed: told when a change of a log failed.
        witness: shown what is flushed.
    """

    def __init__(
        self,
        machine: Machine,
        done: Callable[[Written], object],
        failed: Callable[[Target, StorageError], object],
        witness: LogWitness,
    ) -> None:
        self._machine = machine
        self._done = done
        self._failed = failed
        self._witness = witness
        self._work: list[_Append | _Change] = []
        self._to_flush: dict[int, Target] = {}
        self._is_running = False

    def append(self, target: Target, batches: Sequence[StampedBatch], generation: int) -> None:
        """Write batches behind all that was ordered before."""
        self._order(_Append(target, batches, generation))

    def change(self, target: Target, job: Callable[[], object], done: Callable[[], object]) -> None:
        """Change a log between two appends; `done` on the loop."""
        self._order(_Change(target, job, done))

    def _again(self, change: _Change) -> None:
        """Try a change again later that found no room; no append of its log comes before."""
        self._machine.clock.set_timer(FULL_PAUSE_MS, _bound(self._order, change))

    def _order(self, work: _Append | _Change) -> None:
        self._work.append(work)
        if not self._is_running:
            self._is_running = True
            self._machine.run(THREAD, self._round, self._on_round)

    def _round(self) -> list[Callable[[], object]]:
        """Do what waits; return what is to be done on the loop."""
        work, self._work = self._work, []
        outcomes: list[Callable[[], object]] = []
        for each in work:
            target = each.target
            if isinstance(each, _Change):
                try:
                    each.job()
                except StorageFullError:
                    outcomes.append(_bound(self._again, each))
                except StorageError as error:
                    outcomes.append(_bound(self._failed, target, error))
                else:
                    outcomes.append(each.done)
                continue
            if each.generation != target.generation:
                continue  # Taken back when an earlier write failed.
            try:
                target.log.append(each.batches, self._machine.clock.wall())
            except StorageError as error:
                target.generation += 1
                base_offset = each.batches[0].base_offset
                written = Written(target, base_offset, failed_at=base_offset, error=error)
                outcomes.append(_bound(self._done, written))
                continue
            if target.is_flushed:
                self._to_flush[id(target)] = target
            end_offset = target.log.log_end_offset
            outcomes.append(_bound(self._done, Written(target, end_offset)))
        return outcomes

    def _flush(self) -> list[Callable[[], object]]:
        """Flush what the round wrote; return what is to be done on the loop."""
        targets, self._to_flush = list(self._to_flush.values()), {}
        outcomes: list[Callable[[], object]] = []
        for target in targets:
            end_offset = target.log.log_end_offset
            try:
                flushed_offset = target.log.flush()
            except StorageError as error:
                outcomes.append(_bound(self._failed, target, error))
            else:
                self._witness.on_flushed(self._machine, target.log)
                outcomes.append(_bound(self._done, Written(target, end_offset, flushed_offset)))
        return outcomes

    def _on_round(self, outcomes: object) -> None:
        if isinstance(outcomes, Exception):
            raise outcomes
        assert isinstance(outcomes, list)
        for outcome in outcomes:
            outcome()
        if self._to_flush:
            # What is being flushed is not safe before the disk has taken its time.
            self._machine.run(THREAD, self._machine.disk.charge_flush, self._on_flush_begun)
        elif self._work:
            self._machine.run(THREAD, self._round, self._on_round)
        else:
            self._is_running = False

    def _on_flush_begun(self, result: object) -> None:
        self._machine.run(THREAD, self._flush, self._on_round)


def _bound(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)
