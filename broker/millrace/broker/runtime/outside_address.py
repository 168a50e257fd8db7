"""The address for clients of the outside listener, which may change while a broker lives.

A load balancer, for example, may get a broker's public address long after the broker has started.
So a file can hold the address; heartbeats report it to the controller.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from millrace.broker import events
from millrace.broker.address import Address
from millrace.core.addresses import host_port, parse_addresses

_log = logging.getLogger(__name__)

_READING_SECONDS: Final = 1.0
_LENGTH_MAX: Final = 300
"""Bytes of an address file: a host name has at most 253 characters."""


class OutsideAddress:
    """See the module.

    Args:
        own: the listener's own address.
        file: has the address instead; empty: none.

    Attributes:
        current: `host:port`; empty while unknown.
    """

    def __init__(self, own: Address, file: str) -> None:
        self._own = own
        self._file = file
        self._problem = ""
        self.current = self._read() if file else str(own)

    async def run(self) -> None:
        """Read the file again every second, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_READING_SECONDS)
            found = await asyncio.to_thread(self._read)
            if found != self.current:
                events.OUTSIDE_ADDRESS_CHANGED.log(_log, address=found or "none")
                self.current = found

    def _read(self) -> str:
        try:
            with Path(self._file).open(encoding="utf-8") as file:
                text = file.read(_LENGTH_MAX).strip()
            if not text:
                return ""
            if text.split() != [text]:
                raise ValueError("one line with one address is wanted")
            if text.startswith(":"):
                text = host_port(self._own.host, text[1:])
            (address,) = parse_addresses(text)
        except FileNotFoundError:
            return ""  # It is not known yet.
        except (OSError, ValueError) as error:
            self._tell(f"{self._file}: {error}")
            return ""
        self._problem = ""
        return address

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            events.OUTSIDE_ADDRESS_UNREADABLE.log(_log, error=problem)
