"""Brokers of an earlier release, which would take Kafka's batches for damage (K4).

Their code is that of this release, but they say an earlier level to the controller, and must not
meet what that level does not know. At first all are of it. Each is restarted with this release, and
later one of them with the earlier one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.judges.probes import process_now
from tests.sim.scenarios.scenario import ScenarioCluster
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.controller.shell import ControllerShell
from millrace.broker.storage.log.writer import LogWriter
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import WallMs
from millrace.core.metadata.broker_levels import KAFKA_BATCHES
from millrace.core.metadata.requests import Heartbeat, RegisterBroker, Request
from millrace.core.records.header import KAFKA_FORMAT

_RETURNS: Final = "broker-0"
_EARLIER: Final = KAFKA_BATCHES - 1


class Upgraded(ScenarioCluster):
    """Writers of both kinds are there all the time; those of Kafka have to wait."""

    kafka_share = 0.5
    topics = (
        TopicPlan(
            partitions=2,
            loads=4 * (Load(every_us=200 * MILLISECOND, burst_max=3),),
            polls_every_us=200 * MILLISECOND,
        ),
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._watching_all = self.watching
        self.watching = self._watching_levels
        self._wanted_back = False
        self._met: Violation | None = None

    def _is_earlier(self, name: str) -> bool:
        lives = self.machines[name].lives
        return lives == 1 or (name == _RETURNS and lives == 3)

    @contextmanager
    def _watching_levels(self) -> Iterator[None]:
        request, append, append_cached = (
            ControllerShell.request,
            LogWriter.append,
            LogWriter.append_cached,
        )

        async def requested(shell: ControllerShell, asked: Request) -> Any:
            return await request(shell, self._as_said(asked))

        def appended(writer: LogWriter, batches: Sequence[StampedBatch], now: WallMs) -> None:
            self._note(batches)
            append(writer, batches, now)

        def appended_cached(writer: LogWriter, batch: StampedBatch, now: WallMs) -> bool:
            self._note([batch])
            return append_cached(writer, batch, now)

        with ExitStack() as stack:
            stack.enter_context(self._watching_all())
            for owner, name, wrapper in (
                (ControllerShell, "request", requested),
                (LogWriter, "append", appended),
                (LogWriter, "append_cached", appended_cached),
            ):
                stack.enter_context(patch.object(owner, name, wrapper))
            yield

    def _as_said(self, asked: Request) -> Request:
        """Return what a broker says of itself, of the release that it has."""
        name = ""
        if isinstance(asked, RegisterBroker):
            name = asked.name
            self._wanted_back |= name == _RETURNS and self.machines[name].lives == 3
        elif isinstance(asked, Heartbeat) and self.stored_cluster is not None:
            known = self.stored_cluster.brokers.get(asked.life.broker_id)
            name = "" if known is None else known.name
        if not isinstance(asked, RegisterBroker | Heartbeat) or not name:
            return asked
        return replace(asked, level=_EARLIER) if self._is_earlier(name) else asked

    def _note(self, batches: Sequence[StampedBatch]) -> None:
        process = process_now()
        if process is None or all(batch.format != KAFKA_FORMAT for batch in batches):
            return
        if self._is_earlier(process.machine.name):
            self._met = Violation(f"{process.name} of an earlier release gets Kafka's batches (K4)")

    def check(self) -> None:
        if self._met is not None:
            raise self._met
        super().check()
        if self._wanted_back and self.stored_cluster is not None:
            for known in self.stored_cluster.brokers.values():
                if known.level < KAFKA_BATCHES:
                    raise Violation(f"{known.name} is back with an earlier release (K4)")

    def finish(self) -> Mapping[str, float]:
        """Check that it was tried."""
        measures = super().finish()
        if not self._wanted_back:
            raise Violation("no broker of an earlier release wanted to come back")
        return measures


def _restart_oldest(scene: Scene) -> Undo | None:
    machine = min(scene.machines.values(), key=lambda machine: (machine.lives, machine.name))
    machine.kill()
    return machine.start


def _restart(scene: Scene) -> Undo | None:
    machine = scene.machines[_RETURNS]
    machine.kill()
    return machine.start


UPGRADED: Final = Family("F01", "a broker gets this release", _restart_oldest, (SECOND, SECOND))
RESTARTED: Final = Family(
    "F01", "the first broker gets another release", _restart, (SECOND, SECOND)
)
