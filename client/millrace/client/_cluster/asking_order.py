"""Which broker is asked first: the one that answered last; and last: those that lead nowhere.

A broker that is cut off from the others answers all the same, or its answers lead to a broker that
is dead. A silent one may be paused, or have lost its power.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.client._cluster.wire import BrokerInfo

_DOUBTED_MAX: Final = 4
_SILENT_MAX: Final = 100
"""Addresses of brokers whose silence is remembered."""


class AskingOrder:
    """The addresses of brokers in the order in which they are asked.

    Args:
        bootstrap: addresses that are known at first.
    """

    def __init__(self, bootstrap: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self.first = ""
        """The address that answered last; empty: none did, or its answers lead nowhere."""
        self._doubted: list[str] = []
        """Addresses to ask last: the answers from there have led nowhere."""
        self._silent_since: dict[str, float] = {}
        """Addresses from where the last call got no answer in its time, by the loop's time."""

    def addresses(self, brokers: Iterable[BrokerInfo]) -> list[str]:
        """Return where to ask, in this order."""
        known = (broker.address for broker in brokers if not broker.is_fenced)
        unique = list(dict.fromkeys(filter(None, (self.first, *self._bootstrap, *known))))
        last = [address for address in self._doubted if address in unique]
        return [address for address in unique if address not in last] + last

    def on_used(self, address: str) -> None:
        """Ask this one first from now on: its answer was of use."""
        self.first = address
        self.on_answer(address)
        if address in self._doubted:
            self._doubted.remove(address)

    def ask_another(self, dead: str = "") -> None:
        """Begin with another broker from now on: what the last good one says leads nowhere.

        It may be cut off from the others, and answer all the same.

        Args:
            dead: the address to which its answers lead.
        """
        for address in filter(None, (self.first, dead)):
            self._doubt(address)
        self.first = ""

    def _doubt(self, address: str) -> None:
        """Ask at an address last from now on, until there is an answer from there."""
        if address in self._doubted:
            self._doubted.remove(address)
        self._doubted.append(address)
        del self._doubted[:-_DOUBTED_MAX]

    def on_silence(self, address: str) -> None:
        """Ask at an address last from now on, as a call got no answer from there in its time."""
        self._silent_since.setdefault(address, asyncio.get_running_loop().time())
        if len(self._silent_since) > _SILENT_MAX:
            del self._silent_since[next(iter(self._silent_since))]
        self._doubt(address)

    def on_answer(self, address: str) -> None:
        """Note that a call got an answer from an address, be it a refusal."""
        self._silent_since.pop(address, None)

    def silent_s(self, address: str) -> float | None:
        """Return for how long calls have got no answer from an address; None: the last one did."""
        since = self._silent_since.get(address)
        return None if since is None else asyncio.get_running_loop().time() - since
