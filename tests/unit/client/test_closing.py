"""`close()` of a client whose parts do not end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.client import Admin, Consumer, Producer
from millrace.client._cluster.cluster import Cluster

NOBODY = "127.0.0.1:1"
CLOSE_MS = 300
Client = Admin | Consumer | Producer


class Stuck:
    """A part of a client that never ends."""

    def __init__(self) -> None:
        self.is_told = False

    async def end(self) -> None:
        self.is_told = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self.end()

    async def drain(self) -> None:
        await self.end()

    def cancel(self) -> None:
        self.is_told = True


class StuckCluster(Cluster):
    """A cluster whose connections do not close."""

    is_told = False

    async def close(self) -> None:
        self.is_told = True
        await super().close()
        await asyncio.Event().wait()


def of_an_admin(client: Client) -> list[Any]:
    cast(Any, client)._cluster = cluster = StuckCluster(NOBODY, client_id="c")
    return [cluster]


def of_a_consumer(client: Client) -> list[Any]:
    core = cast(Any, client)._core
    core.cluster, core._streams, core._tasks = StuckCluster(NOBODY, client_id="c"), Stuck(), Stuck()
    return [core.cluster, core._streams, core._tasks]


def of_a_producer(client: Client) -> list[Any]:
    core = cast(Any, client)._pipeline
    core.cluster, core._streams, core._tasks = StuckCluster(NOBODY, client_id="c"), Stuck(), Stuck()
    return [core.cluster, core._streams, core._tasks]


@pytest.mark.parametrize(
    ("kind", "stuck_parts"),
    [(Admin, of_an_admin), (Consumer, of_a_consumer), (Producer, of_a_producer)],
)
def test_close_ends_in_time_though_parts_of_the_client_do_not_end(
    kind: Callable[..., Client], stuck_parts: Callable[[Client], list[Any]]
) -> None:
    async def story() -> None:
        client = kind(NOBODY, close_timeout_ms=CLOSE_MS)
        parts = stuck_parts(client)
        begun = time.monotonic()
        async with asyncio.timeout(10):
            await client.close()
        assert time.monotonic() - begun < 5
        assert all(part.is_told for part in parts), "those behind one that is stuck end, too"

    asyncio.run(story())


def test_a_member_whose_heartbeats_do_not_end_closes_in_time() -> None:
    async def story() -> None:
        consumer = Consumer(NOBODY, group="g", close_timeout_ms=CLOSE_MS)
        await consumer.subscribe(["t"])
        membership = cast(Any, consumer)._core.membership
        await membership._tasks.end()
        membership._tasks = Stuck()
        async with asyncio.timeout(10):
            await consumer.close()

    asyncio.run(story())
