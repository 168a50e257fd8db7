"""The producer ids that this broker may give out: the controller grants it blocks of them.

No id is ever given twice: what is left of a block when the broker stops is lost.
"""

import asyncio

from millrace.broker.controller.channel import ControllerChannel
from millrace.core.callers import Caller
from millrace.core.guard.producer_owners import ProducerOwners
from millrace.core.ids import ProducerId
from millrace.core.metadata.requests import AllocateProducerIds


class ProducerIds:
    """Gives out ids. It belongs to the event loop.

    Args:
        channel: to the controller.

    Attributes:
        owners: of the ids that are used here.
    """

    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel
        self.owners = ProducerOwners()
        self._left = range(0)
        self._lock = asyncio.Lock()

    def take(self) -> ProducerId | None:
        """Return an id that nobody has had; None: there is none here, see `fill`."""
        if not self._left:
            return None
        producer_id, self._left = self._left[0], self._left[1:]
        return ProducerId(producer_id)

    async def fill(self, caller: Caller) -> None:
        """Ask the controller for more unless there are some.

        Args:
            caller: the client that needs one.

        Raises:
            MillraceError: the controller did not grant any.
        """
        async with self._lock:
            if not self._left:
                self._left = await self._channel.request_for_client(AllocateProducerIds(), caller)

    async def next(self, caller: Caller) -> ProducerId:
        """Return an id that nobody has had.

        Raises:
            MillraceError: as `fill`.
        """
        while True:
            producer_id = self.take()
            if producer_id is not None:
                self.owners.keep(producer_id, caller.principal)
                return producer_id
            await self.fill(caller)
