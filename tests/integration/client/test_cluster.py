"""The client's connections to brokers, on a real wire."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker

from millrace.client._cluster import Cluster
from millrace.core.errors import ConnectionFailedError
from millrace.proto.v1 import cluster_pb2

Run = Callable[[Coroutine[Any, Any, None]], None]
EVERYTHING = cluster_pb2.GetMetadataRequest()


def test_a_call_on_a_connection_that_somebody_gave_up_is_a_failed_connection(run: Run) -> None:
    async def story() -> None:
        async with FakeBroker() as broker:
            cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
            try:
                connection = await cluster.any_broker()
                await cluster.drop(connection)
                with pytest.raises(ConnectionFailedError):
                    await cluster.on(connection, lambda each: each.cluster.GetMetadata(EVERYTHING))
                await cluster.refresh()
            finally:
                await cluster.close()

    run(story())


def test_a_call_whose_connection_is_given_up_meanwhile_is_a_failed_connection(run: Run) -> None:
    async def story() -> None:
        async with FakeBroker() as broker:
            cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
            try:
                connection = await cluster.any_broker()
                broker.metadata_gate.clear()
                call = asyncio.create_task(
                    cluster.on(connection, lambda each: each.cluster.GetMetadata(EVERYTHING))
                )
                await broker.until(lambda: broker.metadata_requests == 1)
                await cluster.drop(connection)
                with pytest.raises(ConnectionFailedError):
                    await call
            finally:
                broker.metadata_gate.set()
                await cluster.close()

    run(story())


def test_a_caller_who_is_cancelled_is_cancelled(run: Run) -> None:
    async def story() -> None:
        async with FakeBroker() as broker:
            cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
            try:
                broker.metadata_gate.clear()
                connection = await cluster.any_broker()
                call = asyncio.create_task(
                    cluster.on(connection, lambda each: each.cluster.GetMetadata(EVERYTHING))
                )
                await broker.until(lambda: broker.metadata_requests == 1)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            finally:
                broker.metadata_gate.set()
                await cluster.close()

    run(story())
