"""A simulated client of Kafka: its connections to brokers, and what it knows of them.

Nothing here is the product's but the tables of Kafka's messages (kafka-python's, which the product
uses for cold requests): frames, answers, look-ups and time-outs are as librdkafka has them. A
request that is not answered in time ends its connection, and with it all requests of it.
"""

import asyncio
import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest
from tests.fakes.kafka_ends import request_frame
from tests.sim.clients.kafka.logins import log_in

from millrace.broker.kafka.names import uuid_of
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.broker.kafka.wire.errors import CODES, Code
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    MillraceError,
    RetriableError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from millrace.runtime import host

NO_ERROR: Final = 0
NO_TOPIC_ID: Final = uuid_of(bytes(16))
_LENGTH: Final = struct.Struct(">i")
_BUFFER_BYTES: Final = 64 << 10
_CONNECT_S: Final = 2.0
_ERRORS: Final[dict[int, type[MillraceError]]] = {
    int(code): kind for kind, code in reversed(CODES.items())
}
_METADATA_VERSIONS: Final = (10, 12)


class NotAnsweredError(ConnectionFailedError):
    """The connection of a request ended before its answer came: what it did is not known."""

    appended = Appended.MAYBE


def error_of(code: int, about: str) -> MillraceError:
    """Return an error with a number of Kafka's, as Millrace's clients would know it."""
    if code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.LEADER_NOT_AVAILABLE):
        return RetriableError(f"{about}: {Code(code).name}")
    kind = _ERRORS.get(code, UnknownServerError)
    return kind(f"{about}: {code}")


class KafkaConnection(asyncio.BufferedProtocol):
    """One connection; answers come in the order of their requests.

    Attributes:
        is_lost: it has ended.
        is_encrypted: nobody else reads it.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.is_lost = False
        self.is_encrypted = False
        self._raw: asyncio.Future[bytes] | None = None
        self._address = address
        self._client_id = client_id
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._data = bytearray()
        self._numbers = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._transport: Any = None

    # --- asyncio.BufferedProtocol ------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_encrypted = transport.get_extra_info("ssl_object") is not None

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._data
        data += self._buffer[:nbytes]
        at = 0
        while len(data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + _LENGTH.size + length
            if end > len(data):
                break
            self._on_answer(bytes(data[at + _LENGTH.size : end]))
            at = end
        del data[:at]

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._raw is not None and not self._raw.done():
            self._raw.set_exception(NotAnsweredError(f"{self._address} is gone"))
            self._raw.exception()
        waiting, self._waiting = self._waiting, {}
        for key, _, answer in waiting.values():
            if not answer.done():
                why = f"{self._address} has not answered {codec.name_of(key)}: {exc}"
                answer.set_exception(NotAnsweredError(why))
                answer.exception()

    # --- Requests ----------------------------------------------------------------------------

    def send(
        self, key: int, version: int, message: Any, *, has_answer: bool = True
    ) -> "asyncio.Future[Any]":
        """Send a request; return its answer, which is there at once if there is none."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_lost or self._transport.is_closing():
            answer.set_exception(NotAnsweredError(f"{self._address} is gone"))
            answer.exception()
            return answer
        self._numbers += 1
        frame = request_frame(
            key, version, message, correlation_id=self._numbers, client_id=self._client_id
        )
        if has_answer:
            self._waiting[self._numbers] = (key, version, answer)
        else:
            answer.set_result(None)
        self._transport.write(frame)
        return answer

    def send_raw(self, data: bytes) -> "asyncio.Future[bytes]":
        """Send bytes that are no request; return those that answer them."""
        self._raw = asyncio.get_running_loop().create_future()
        if self.is_lost or self._transport.is_closing():
            self._raw.set_exception(NotAnsweredError(f"{self._address} is gone"))
            self._raw.exception()
        else:
            self._transport.write(_LENGTH.pack(len(data)) + data)
        return self._raw

    async def ask(self, key: int, version: int, message: Any, patience_s: float) -> Any:
        """Return the answer to a request.

        Raises:
            NotAnsweredError: the connection has ended, or there was no answer in time.
        """
        return await self.awaited(self.send(key, version, message), patience_s)

    async def awaited(self, answer: "asyncio.Future[Any]", patience_s: float) -> Any:
        """Return an answer; without one in time the connection ends.

        Raises:
            NotAnsweredError: as of `ask`.
        """
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            self.end()
            raise NotAnsweredError(f"{self._address} did not answer in time") from None

    def end(self) -> None:
        """End it at once; nothing that it waits for comes any more."""
        if self._transport is not None and not self.is_lost:
            self._transport.abort()
        self.connection_lost(None)

    def close(self) -> None:
        """End it after what was sent."""
        if self._transport is not None and not self.is_lost:
            self._transport.close()

    def _on_answer(self, data: bytes) -> None:
        if self._raw is not None:
            raw, self._raw = self._raw, None
            if not raw.done():
                raw.set_result(data)
            return
        (number,) = _LENGTH.unpack_from(data)
        key, version, answer = self._waiting.pop(number)
        has_tags = key != ApiKey.API_VERSIONS and codec.is_flexible(key, version)
        begin = _LENGTH.size + has_tags
        message = codec.response_class(key).decode(data[begin:], version=version)
        if not answer.done():
            answer.set_result(message)


class KnownLeader(NamedTuple):
    """Who leads a partition, in which epoch; -1: nobody, or it is not told."""

    broker_id: int
    epoch: int


@dataclass(slots=True)
class KnownTopic:
    """What a client knows of a topic.

    Attributes:
        topic_id: zero: it is not told.
        leaders: of each partition.
    """

    topic_id: Any = NO_TOPIC_ID
    leaders: dict[int, KnownLeader] = field(default_factory=dict)


class KafkaBrokers:
    """The brokers that a client knows, with a connection to each that it needs.

    Args:
        bootstrap: where it begins, `host:port` of some brokers, with commas.
        client_id: how it calls itself.
        dice: of the client.
        patience_s: how long a broker may take to answer.
    """

    def __init__(
        self, bootstrap: str, client_id: str, dice: random.Random, patience_s: float
    ) -> None:
        self.patience_s = patience_s
        self.dice = dice
        self._bootstrap = bootstrap.split(",")
        self._client_id = client_id
        self._addresses: dict[int, str] = {}
        self._connections: dict[tuple[str, str], KafkaConnection] = {}
        self._connecting: dict[tuple[str, str], asyncio.Task[KafkaConnection]] = {}

    async def connection(self, broker_id: int, purpose: str = "") -> KafkaConnection:
        """Return a connection to a broker that was looked up; it has one for each purpose.

        Raises:
            ConnectionFailedError: there is none.
        """
        address = self._addresses.get(broker_id)
        if address is None:
            raise ConnectionFailedError(f"broker {broker_id} is not known")
        return await self._connected(address, purpose)

    def connected(self, broker_id: int, purpose: str = "") -> KafkaConnection | None:
        """Return the connection to a broker, if there is one."""
        address = self._addresses.get(broker_id, "")
        found = self._connections.get((address, purpose))
        return None if found is None or found.is_lost else found

    async def _connected(self, address: str, purpose: str) -> KafkaConnection:
        key = address, purpose
        found = self._connections.get(key)
        if found is not None and not found.is_lost:
            return found
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = asyncio.get_running_loop().create_task(
                self._connect(address, key)
            )
            task.add_done_callback(lambda done: self._on_connected(key, done))
        return await asyncio.shield(task)

    def _on_connected(self, key: tuple[str, str], done: "asyncio.Task[KafkaConnection]") -> None:
        self._connecting.pop(key, None)
        if not done.cancelled():
            done.exception()

    async def _connect(self, address: str, key: tuple[str, str]) -> KafkaConnection:
        current: Any = host.current
        try:
            async with asyncio.timeout(_CONNECT_S):
                made = await current.connect(
                    address, lambda: KafkaConnection(address, self._client_id)
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionFailedError(f"{address} is not reached: {error}") from None
        login = current.process.machine.login
        if login is not None:
            await log_in(made, login, self.dice, self.patience_s)
        self._connections[key] = made
        found: KafkaConnection = made
        return found

    async def ask_any(self, key: int, version: int, message: Any) -> Any:
        """Return what some broker answers.

        Raises:
            ConnectionFailedError: it does not.
        """
        address = self.dice.choice([*self._bootstrap, *self._addresses.values()])
        connection = await self._connected(address, "")
        return await connection.ask(key, version, message, self.patience_s)

    async def ask(
        self, broker_id: int, key: int, version: int, message: Any, purpose: str = ""
    ) -> Any:
        """Return what a broker answers.

        Raises:
            ConnectionFailedError: it does not.
        """
        connection = await self.connection(broker_id, purpose)
        return await connection.ask(key, version, message, self.patience_s)

    async def look_up(self, topic: str) -> KnownTopic:
        """Return who leads the partitions of a topic, by some broker.

        Raises:
            UnknownTopicOrPartitionError: it knows none of that name.
            MillraceError: there is no answer, or a refusal.
        """
        version = self.dice.choice(_METADATA_VERSIONS)
        asked = MetadataRequest(
            version=version,
            topics=[MetadataRequest.MetadataRequestTopic(name=topic, topic_id=NO_TOPIC_ID)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )
        answer = await self.ask_any(ApiKey.METADATA, version, asked)
        self._learn(answer.brokers)
        [told] = answer.topics
        if told.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic}")
        if told.error_code != NO_ERROR:
            raise error_of(told.error_code, topic)
        known = KnownTopic()
        if told.topic_id is not None:
            known.topic_id = told.topic_id
        for partition in told.partitions:
            epoch = -1 if partition.leader_epoch is None else partition.leader_epoch
            known.leaders[partition.partition_index] = KnownLeader(partition.leader_id, epoch)
        return known

    def _learn(self, brokers: Iterable[Any]) -> None:
        self._addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in brokers}

    def learn(self, broker_id: int, address: str) -> None:
        """Note where a broker is reached, as another answer says."""
        self._addresses[broker_id] = address

    def close(self) -> None:
        """End all connections after what was sent."""
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()
