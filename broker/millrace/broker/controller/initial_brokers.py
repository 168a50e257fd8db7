"""A broker reads from a file how many brokers its new cluster waits for (P77).

A person can make a Cluster on Kubernetes smaller while its first brokers start. The brokers that
run must learn that they wait for fewer others, without a restart. So a file that is read again and
again can replace the setting `cluster.initial_brokers`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.broker import events
from millrace.core.metadata.cluster_config import INITIAL_BROKERS_MAX
from millrace.core.numbers import parse_whole_number
from millrace.runtime.small_file import READING_SECONDS, SmallFile

_log = logging.getLogger(__name__)

_LENGTH_MAX: Final = 20
"""Characters of the file that are looked at."""


class InitialBrokers:
    """Reads the file every second, and tells of a new number.

    Args:
        file: path of the file with the number.
        usual: the number until the file has one. A file that is empty later keeps the last number:
            a cluster that has begun cannot wait again, and a person may write the file by hand.
        on_change: called with the new number after each change.
    """

    def __init__(self, file: str, usual: int, on_change: Callable[[int], None]) -> None:
        self._file = SmallFile(file, _LENGTH_MAX, _parse, _on_problem)
        self._current = usual
        self._on_change = on_change

    async def run(self) -> None:
        """Read the file again every second, for as long as the broker runs."""
        while True:
            await asyncio.sleep(READING_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file, and pass another number on."""
        found = await asyncio.to_thread(self._file.read)
        if found is not None and found != self._current:
            self._current = found
            self._on_change(found)


def _parse(text: str) -> int:
    count = parse_whole_number(text, INITIAL_BROKERS_MAX)
    if not count:
        raise ValueError(f"must be a whole number from 1 to {INITIAL_BROKERS_MAX}")
    return count


def _on_problem(problem: str) -> None:
    events.INITIAL_BROKERS_UNREADABLE.log(_log, error=problem)
