"""The connections to one broker."""

import asyncio
from typing import Any

import pytest

from millrace.client._cluster.broker_channel import BrokerChannel
from millrace.runtime.transport.calls import CallError


class Opened:
    """A connection of DRPC."""

    is_closed = False
    is_free = True

    def abort(self, reason: str) -> None:
        self.is_closed = True


class SlowConnector:
    """Opens a connection when the test says so."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.opened = Opened()

    def tries(self, address: str) -> bool:
        return True

    async def connect(self, address: str, greet: object) -> Opened:
        await self.may_open.wait()
        return self.opened


async def test_a_connection_that_opens_after_the_client_has_closed_is_closed() -> None:
    connector: Any = SlowConnector()
    channel = BrokerChannel("b:1", client_id="c", on_called=lambda *_: None, connector=connector)
    calling = asyncio.ensure_future(channel.unary_unary("/S/Ask", bytes, bytes)(b""))
    await asyncio.sleep(0)
    await channel.close()
    connector.may_open.set()
    with pytest.raises(CallError, match="closed"):
        await calling
    assert connector.opened.is_closed
