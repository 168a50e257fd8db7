"""The address for clients of the outside listener, which may change while a broker lives.

A load balancer, for example, may get a broker's public address long after the broker has started.
So a file can hold the address; heartbeats report it to the controller.
"""

import asyncio
import logging
from typing import Final

from millrace.broker import events
from millrace.broker.address import Address
from millrace.core.addresses import host_port, parse_addresses
from millrace.runtime.small_file import READING_SECONDS, SmallFile

_log = logging.getLogger(__name__)

_LENGTH_MAX: Final = 300
"""Characters of an address file: a host name has at most 253 characters."""


class OutsideAddress:
    """The present address, which follows its file.

    Args:
        own: the listener's own address.
        file: has the address instead; empty: none.

    Attributes:
        current: `host:port`; empty while unknown.
    """

    def __init__(self, own: Address, file: str) -> None:
        self._own = own
        self._file = SmallFile(file, _LENGTH_MAX, self._parse, _on_problem)
        self.current = (self._file.read() or "") if file else str(own)

    async def run(self) -> None:
        """Read the file again every second, for as long as the broker runs."""
        while True:
            await asyncio.sleep(READING_SECONDS)
            found = await asyncio.to_thread(self._file.read) or ""
            if found != self.current:
                events.OUTSIDE_ADDRESS_CHANGED.log(_log, address=found or "none")
                self.current = found

    def _parse(self, text: str) -> str:
        if text.split() != [text]:
            raise ValueError("one line with one address is wanted")
        if text.startswith(":"):
            text = host_port(self._own.host, text[1:])
        (address,) = parse_addresses(text)
        return address


def _on_problem(problem: str) -> None:
    events.OUTSIDE_ADDRESS_UNREADABLE.log(_log, error=problem)
