"""Why a broker is reluctant to lead: one of its disks is slow or full, or its address is new.

`core.replica.replication.disk_health` decides for each log directory; one bad directory is enough.
A new address has to be in the metadata of clients first. The heartbeats report it to the
controller.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from prometheus_client import Gauge

from millrace.broker import events
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.reader import LogReader
from millrace.core.broker_config import StorageConfig
from millrace.core.metadata.model import Reluctance
from millrace.core.replica.replication.disk_health import DiskHealth
from millrace.runtime.clock import monotonic_now

_log = logging.getLogger(__name__)

_READING_SECONDS: Final = 1.0


class ReluctanceWatch:
    """Takes readings of the disks in use.

    Args:
        directories: in use.
        reader: has threads for the disks.
        address_settle_ms: for how long from now on the address is new.
    """

    def __init__(
        self,
        directories: Sequence[OpenDirectory],
        reader: LogReader,
        config: StorageConfig,
        address_settle_ms: int,
    ) -> None:
        self._of_disks = Reluctance.NONE
        self._settled_at = monotonic_now() + address_settle_ms
        self._watched = [(directory, DiskHealth(config.slow_flush_ms)) for directory in directories]
        self._reader = reader
        self._free_bytes_min = config.ballast_bytes

    @property
    def reluctance(self) -> Reluctance:
        """Why this broker is reluctant to lead now."""
        is_settled = monotonic_now() >= self._settled_at
        return self._of_disks or (Reluctance.NONE if is_settled else Reluctance.NEW_ADDRESS)

    def show_in(self, gauge: Gauge) -> None:
        """Let a metric show each reason."""
        for reason in filter(None, Reluctance):
            gauge.labels(reason).set_function(
                lambda reason=reason: self.reluctance is reason  # type: ignore[misc]
            )

    async def run(self) -> None:
        """Take a reading a second, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_READING_SECONDS)
            for opened, health in self._watched:
                if opened.failure is None:
                    await self._read(opened, health)
            reasons = {
                health.reluctance for opened, health in self._watched if opened.failure is None
            }
            self._of_disks = next(filter(None, sorted(reasons)), Reluctance.NONE)

    async def _read(self, opened: OpenDirectory, health: DiskHealth) -> None:
        before = health.reluctance
        # Only a full disk is asked: one that hangs would not answer.
        has_room = before is not Reluctance.FULL_DISK or await self._has_room(opened)
        reluctance = health.on_reading(
            opened.appender.take_reading(), monotonic_now(), has_room=has_room
        )
        if reluctance is not before:
            log_dir = opened.directory.path
            if reluctance:
                events.RELUCTANT_TO_LEAD.log(_log, reason=reluctance.value, log_dir=log_dir)
            else:
                events.ABLE_TO_LEAD.log(_log, log_dir=log_dir)

    async def _has_room(self, opened: OpenDirectory) -> bool:
        try:
            free: int = await self._reader.call(opened.directory.path, opened.directory.free_space)
        except OSError:
            return False
        return free >= self._free_bytes_min
