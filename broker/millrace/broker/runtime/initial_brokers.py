"""With how many brokers the cluster begins, which may change before they have come (P77).

A Cluster on Kubernetes can be made smaller while its first brokers start. Those that are there must
not wait for the others then. So a file can hold the number, instead of `cluster.initial_brokers`.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.broker import events
from millrace.core.metadata.cluster_config import INITIAL_BROKERS_MAX
from millrace.core.numbers import parse_whole_number

_log = logging.getLogger(__name__)

_READING_SECONDS: Final = 1.0
_LENGTH_MAX: Final = 20
"""Characters of the file that are looked at."""


class InitialBrokers:
    """See the module.

    Args:
        file: has the number.
        usual: the number without that file.
        on_change: called with each other number.
    """

    def __init__(self, file: str, usual: int, on_change: Callable[[int], None]) -> None:
        self._file = Path(file)
        self._usual = self._current = usual
        self._on_change = on_change
        self._problem = ""

    async def run(self) -> None:
        """Read the file again every second, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_READING_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file, and pass another number on."""
        found = await asyncio.to_thread(self._read)
        if found != self._current:
            self._current = found
            self._on_change(found)

    def _read(self) -> int:
        try:
            with self._file.open(encoding="utf-8") as file:
                text = file.read(_LENGTH_MAX).strip()
            count = parse_whole_number(text, INITIAL_BROKERS_MAX) if text else self._usual
            if not count:
                raise ValueError(f"must be a whole number from 1 to {INITIAL_BROKERS_MAX}")
        except FileNotFoundError:
            count = self._usual
        except (OSError, ValueError) as error:
            self._tell(f"{self._file}: {error}")
            return self._current
        self._problem = ""
        return count

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            events.INITIAL_BROKERS_UNREADABLE.log(_log, error=problem)
