"""The cluster as one client sees it: connections by address, metadata by name.

`bootstrap` addresses are tried in turn until one answers; from then on the brokers that the
metadata names are known as well. The first call on every connection is `Hello`: a wrong cluster
comes out there, not in the middle of a stream. No background task: metadata is looked up when it
is missing or was proved wrong, at most one look-up at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeVar

import grpc
import grpc.aio

from millrace.client import _wire
from millrace.client._wire import TopicInfo
from millrace.core.errors import (
    ClosedError,
    ConnectionFailedError,
    InvalidConfigError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2,
    fetch_pb2_grpc,
    produce_pb2_grpc,
)

SOFTWARE_NAME: Final = "millrace-python"
_CONNECT_TIMEOUT_S: Final = 10.0

Result = TypeVar("Result")


@dataclass(slots=True, frozen=True)
class BrokerInfo:
    """A broker that the cluster knows."""

    broker_id: BrokerId
    name: str
    address: str
    rack: str
    is_fenced: bool


@dataclass(slots=True)
class Connection:
    """A channel to one broker that has answered `Hello`."""

    address: str
    channel: grpc.aio.Channel
    hello: common_pb2.HelloResponse = field(default_factory=common_pb2.HelloResponse)

    @property
    def cluster(self) -> cluster_pb2_grpc.ClusterStub:
        """Metadata and administration."""
        return cluster_pb2_grpc.ClusterStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def produce(self) -> produce_pb2_grpc.ProduceStub:
        """Producer ids; the stream is opened by its own raw codec."""
        return produce_pb2_grpc.ProduceStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def fetch(self) -> fetch_pb2_grpc.FetchStub:
        """Offsets; the stream is opened by its own raw codec."""
        return fetch_pb2_grpc.FetchStub(self.channel)  # type: ignore[no-untyped-call]


class Cluster:
    """Connections and metadata of one client.

    Args:
        bootstrap: `host:port`, several separated by commas, or a sequence of them.
        client_id: name of the client in the brokers' logs and metrics.
        timeout_ms: how long one call may take.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], *, client_id: str, timeout_ms: int = 30_000
    ) -> None:
        names = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        self._bootstrap = [name.strip() for name in names if name.strip()]
        for name in self._bootstrap:
            host, colon, port = name.rpartition(":")
            if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
                raise InvalidConfigError(
                    f"bootstrap address {name!r}: write host:port, such as localhost:7092"
                )
        if not self._bootstrap:
            raise InvalidConfigError("bootstrap: name at least one broker as host:port")
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._last_address = ""
        self._refreshes: dict[frozenset[str], asyncio.Task[None]] = {}
        self._is_closed = False
        self.cluster_id = ""
        self.controller_id = BrokerId(-1)
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topic_names: dict[TopicId, str] = {}

    # Connections.

    async def connection(self, address: str) -> Connection:
        """Return the connection to a broker, opened and greeted.

        Raises:
            ConnectionFailedError: it cannot be reached.
            MillraceError: it refuses this client.
        """
        if self._is_closed:
            raise ClosedError("the client is closed")
        task = self._connections.get(address)
        if task is None:
            task = self._connections[address] = asyncio.create_task(self._connect(address))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClosedError("the client was closed meanwhile") from None
            raise
        except BaseException:
            if self._connections.get(address) is task:
                del self._connections[address]
            raise

    async def broker(self, broker_id: BrokerId) -> Connection:
        """Return the connection to a broker by its id."""
        info = self.brokers.get(broker_id)
        if info is None:
            raise ConnectionFailedError(f"broker {broker_id} is not in the cluster's metadata")
        return await self.connection(info.address)

    async def any_broker(self) -> Connection:
        """Return a connection to whichever broker answers, the last good one first.

        Raises:
            ConnectionFailedError: none does; says why for each.
        """
        addresses = [self._last_address] if self._last_address else []
        addresses += self._bootstrap
        addresses += [broker.address for broker in self.brokers.values() if not broker.is_fenced]
        problems = []
        for address in dict.fromkeys(addresses):
            try:
                connection = await self.connection(address)
            except ClosedError:
                raise
            except MillraceError as error:
                problems.append(error.message)
            else:
                self._last_address = address
                return connection
        raise ConnectionFailedError(
            "no broker can be reached: " + "; ".join(problems) + ". Is one running there?"
        )

    async def call(self, method: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Call any broker; one that does not answer is left for the next."""
        for _ in range(len(self._bootstrap) + len(self.brokers) + 1):
            connection = await self.any_broker()
            try:
                return await self.on(connection, method)
            except ConnectionFailedError as error:
                last = error
                self._last_address = ""
        raise last

    async def on(
        self, connection: Connection, method: Callable[[Connection], Awaitable[Result]]
    ) -> Result:
        """Call this broker, with the client's time-out.

        Raises:
            ConnectionFailedError: no answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await method(connection)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                await self.drop(connection)
            raise _wire.error_from_rpc(error, connection.address) from error
        except TimeoutError:
            raise ConnectionFailedError(
                f"the broker at {connection.address} did not answer in {self._timeout_s:g} s"
            ) from None
        except (grpc.aio.UsageError, asyncio.CancelledError):
            # Somebody else has given the connection up, before the call or during it; unless it is
            # the caller who was cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionFailedError(
                f"the connection to the broker at {connection.address} was given up"
            ) from None

    async def list_offsets(
        self, broker_id: BrokerId, request: fetch_pb2.ListOffsetsRequest
    ) -> Sequence[fetch_pb2.ListedOffset]:
        """Ask the leader of some partitions for offsets; return them in the request's order.

        Raises:
            ConnectionFailedError: no answer.
            MillraceError: the first partition's that was refused.
        """
        response: fetch_pb2.ListOffsetsResponse = await self.on(
            await self.broker(broker_id), lambda connection: connection.fetch.ListOffsets(request)
        )
        for listed in response.offsets:
            _wire.raise_if_error(listed.error, is_set=listed.HasField("error"))
        return response.offsets

    async def drop(self, connection: Connection) -> None:
        """Forget a connection that failed; the next use opens another."""
        task = self._connections.get(connection.address)
        if task is None or not task.done() or task.cancelled() or task.exception():
            return
        if task.result() is connection:
            del self._connections[connection.address]
            await connection.channel.close()

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        tasks = [*self._connections.values(), *self._refreshes.values()]
        self._connections.clear()
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, Connection):
                await done.channel.close()

    async def _connect(self, address: str) -> Connection:
        connection = Connection(
            address, grpc.aio.insecure_channel(address, options=_wire.channel_options())
        )
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                connection.hello = await connection.cluster.Hello(
                    common_pb2.HelloRequest(
                        cluster_id=self.cluster_id,
                        client_id=self._client_id,
                        software_name=SOFTWARE_NAME,
                        software_version=_software_version(),
                    )
                )
            _wire.raise_if_error(connection.hello.error, is_set=connection.hello.HasField("error"))
        except BaseException as error:
            await connection.channel.close()
            if isinstance(error, grpc.RpcError):
                raise _wire.error_from_rpc(error, address) from error
            if isinstance(error, TimeoutError):
                raise ConnectionFailedError(
                    f"the broker at {address} did not answer in {_CONNECT_TIMEOUT_S:g} s"
                ) from None
            raise
        self.cluster_id = self.cluster_id or connection.hello.cluster_id
        return connection

    # Metadata.

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic, looked up unless it is known.

        Raises:
            InvalidTopicError: not a topic's name.
            UnknownTopicOrPartitionError: the cluster has no such topic.
            ConnectionFailedError: no broker answers.
        """
        name = str(parse_topic_name(name))
        if name not in self.topics:
            await self.refresh([name])
        info = self.topics.get(name)
        if info is None:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {name!r}: create it first, or check the name"
            )
        return info

    async def refresh(self, names: Iterable[str] | None = None) -> None:
        """Look up brokers and topics; None: all topics. Concurrent equal look-ups are one."""
        wanted = frozenset(names) if names is not None else frozenset([""])
        task = self._refreshes.get(wanted)
        if task is None:
            task = asyncio.create_task(self._refresh(wanted))
            self._refreshes[wanted] = task
            task.add_done_callback(lambda _: self._refreshes.pop(wanted, None))
        await asyncio.shield(task)

    async def _refresh(self, wanted: frozenset[str]) -> None:
        everything = "" in wanted
        request = cluster_pb2.GetMetadataRequest(topics=() if everything else sorted(wanted))
        response = await self.call(lambda connection: connection.cluster.GetMetadata(request))
        self.learn(response)
        if everything:
            seen = {str(parse_topic_name(t.name)) for t in response.topics if not t.error.code}
            for name in [name for name in self.topics if name not in seen]:
                self._forget(name)

    def learn(self, response: cluster_pb2.GetMetadataResponse) -> None:
        """Take what a broker says about the cluster."""
        self.controller_id = BrokerId(response.controller_id)
        if response.brokers:
            self.brokers = {
                BrokerId(broker.broker_id): BrokerInfo(
                    BrokerId(broker.broker_id),
                    broker.name,
                    broker.address,
                    broker.rack,
                    broker.fenced,
                )
                for broker in response.brokers
            }
        for topic in response.topics:
            if topic.HasField("error") and topic.error.code:
                if topic.name:
                    self._forget(str(parse_topic_name(topic.name)))
                continue
            info = _wire.topic_from_wire(topic)
            self.topics[info.name] = info
            self.topic_names[info.topic_id] = info.name

    def topic_ids(self, names: Iterable[str]) -> dict[str, TopicId | None]:
        """Return which topics have these names, as of the last look-up; None: there is none."""
        found = {name: self.topics.get(name) for name in names}
        return {name: None if info is None else info.topic_id for name, info in found.items()}

    def _forget(self, name: str) -> None:
        info = self.topics.pop(name, None)
        if info is not None:
            self.topic_names.pop(info.topic_id, None)


def _software_version() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:  # Run from a bare clone.
        return "0"
