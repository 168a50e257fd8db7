"""Calls to brokers whose connection breaks under several callers at once."""

import asyncio

import grpc.aio
import pytest

from millrace.client._cluster import Cluster, Connection
from millrace.core.errors import ConnectionFailedError

ADDRESS = "127.0.0.1:1"


async def _closed_meanwhile(connection: Connection) -> None:
    """End as gRPC's calls do when another task closes their channel."""
    await asyncio.sleep(0)
    raise asyncio.CancelledError


def test_a_connection_that_another_caller_closes_is_a_failed_connection() -> None:
    async def call() -> None:
        cluster = Cluster(ADDRESS, client_id="test")
        async with grpc.aio.insecure_channel(ADDRESS) as channel:
            await cluster.on(Connection(ADDRESS, channel), _closed_meanwhile)

    with pytest.raises(ConnectionFailedError, match="closed meanwhile"):
        asyncio.run(call())


def test_a_caller_that_is_cancelled_itself_is_cancelled() -> None:
    async def wait_for_ever(connection: Connection) -> None:
        await asyncio.Event().wait()

    async def call() -> None:
        cluster = Cluster(ADDRESS, client_id="test")
        async with grpc.aio.insecure_channel(ADDRESS) as channel:
            task = asyncio.create_task(cluster.on(Connection(ADDRESS, channel), wait_for_ever))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(call())
