"""The positions of readers: coordinators of the internal topic `__positions`, and expiry."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from millrace.broker.runtime.coordinators import CoordinatorLimits, CoordinatorRuntime
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.turns import Turns
from millrace.core.coordinators import Result
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, WallMs
from millrace.core.positions import records
from millrace.core.positions.machine import PositionsMachine
from millrace.core.positions.position import PositionsConfig
from millrace.core.positions.records import PositionRecord
from millrace.core.topics import POSITIONS_TOPIC

_EXPIRE_SECONDS: Final = 60.0
_EXPIRE_AT_ONCE: Final = 10
"""Names that one request looks at."""

PositionsRuntime: TypeAlias = CoordinatorRuntime[PositionsMachine, PositionRecord]


class Positions:
    """See the module. On the event loop.

    Attributes:
        runtime: runs the machines.
    """

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        config: PositionsConfig,
        *,
        turns: Turns,
        on_failure: Callable[[BaseException], None],
        limits: CoordinatorLimits,
    ) -> None:
        self._partitions = partitions
        self.runtime: PositionsRuntime = CoordinatorRuntime(
            str(POSITIONS_TOPIC),
            lambda start_offset: PositionsMachine(config, start_offset),
            records,
            partitions=partitions,
            reader=reader,
            turns=turns,
            on_failure=on_failure,
            limits=limits,
        )

    def kept(self) -> int:
        """Return how many positions the loaded machines keep; from any thread."""
        return sum(len(machine) for _, machine in self.runtime.machines())

    async def expire(self) -> None:
        """Delete positions that have not been used for long, while the broker runs."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            await self.expire_now()

    async def expire_now(self) -> None:
        """Look through all positions once."""
        for topic_partition, machine in self.runtime.machines():
            names = machine.names()
            with suppress(MillraceError):  # The next time, or the next leader, does it.
                for at in range(0, len(names), _EXPIRE_AT_ONCE):
                    some = names[at : at + _EXPIRE_AT_ONCE]

                    def forget(
                        machine: PositionsMachine, now: WallMs, some: Sequence[str] = some
                    ) -> Result[PositionRecord, None]:
                        return machine.handle_expire(some, now, self._exists)

                    await self.runtime.ask(topic_partition, forget)
                    await asyncio.sleep(0)  # Other work needs the loop, too.

    def _exists(self, topic_id: TopicId) -> bool:
        image = self._partitions.image
        return image is None or topic_id in image.topics_by_id
