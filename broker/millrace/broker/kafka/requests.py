"""What is served: for each number of a request the versions, and what handles it.

Only what is here is listed by ApiVersions, so that clients ask for nothing else (K5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.credentials import Credential
from millrace.core.records.header import Buffer
from millrace.runtime.clock import monotonic_now

_T = TypeVar("_T")


class ApiKey(IntEnum):
    """Kafka's numbers of requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class KafkaConnectionState:
    """What a connection remembers for the modules of requests.

    Args:
        address: `host:port` of the other end.

    Attributes:
        address: as given.
        software: of the client, as it says; empty: it does not say.
        close: ends the connection, where that is all that can be told.
        is_encrypted: whether it is by TLS.
        credential: that the client has proved itself with; None: with none. When it changes, the
            connection's caller is found out again.
        is_refused: set when it proved nothing: the connection ends after the answer.
        take_raw: answers what comes next, which are no requests; None: requests come.
        draining: set when the connection is to end: what waits for news should answer.
        on_closed: called when the connection is gone.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.software = ""
        self.close: Callable[[], None] = lambda: None
        self.is_encrypted = False
        self.credential: Credential | None = None
        self.is_refused = False
        self.take_raw: Callable[[bytes], Awaitable[bytes]] | None = None
        self.draining = asyncio.Event()
        self.on_closed: list[Callable[[], None]] = []
        self._kept: dict[type, Any] = {}

    def of(self, kind: Callable[[], _T]) -> _T:
        """Return what a module keeps for the connection: the one object of its class.

        Args:
            kind: the class; made without arguments at the first time.
        """
        assert isinstance(kind, type)
        if kind not in self._kept:
            self._kept[kind] = kind()
        found: _T = self._kept[kind]
        return found


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose caller is known.

    Attributes:
        key: which one it is.
        version: of its format.
        client_id: as the client calls itself; empty: it does not say.
        message: kafka-python's message; where it is served `raw`, the body's bytes.
        caller: who asks.
        connection: what the connection remembers.
        arrived_ms: when it came; those before it may have been handled since.
    """

    key: int
    version: int
    client_id: str
    message: Any
    caller: GuardedCaller
    connection: KafkaConnectionState
    arrived_ms: int = field(default_factory=monotonic_now)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A response that is encoded already, after its header.

    Attributes:
        parts: its bytes, which must not change any more.
        on_sent: called when little of it waits to be sent; not where the connection is gone first.
    """

    parts: Sequence[Buffer]
    on_sent: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """A response that will be there later: the connection's next request may begin meanwhile.

    Attributes:
        response: kafka-python's message, `Encoded` or None, as a handler returns it.
    """

    response: "asyncio.Future[Any]"


Handler = Callable[[Request], Awaitable[Any]]
"""Returns kafka-python's response, `Encoded`, `Later`, or None where the client awaits no answer.

It answers a `MillraceError` in the fields of the response. One that it raises ends the connection.
"""


@dataclass(frozen=True, slots=True)
class Served:
    """How a request is served.

    Attributes:
        versions: of the request.
        handler: answers it.
        is_raw: whether the handler gets the body's bytes, and decodes them itself.
        keeps_bytes: whether its bytes count as received until the handler returns, as it counts
            them from then on; else they do not count once it begins.
        is_for_strangers: whether it is answered before anybody knows who asks.
        listed: the versions that ApiVersions lists; None: those that are served.
    """

    versions: range
    handler: Handler
    is_raw: bool = False
    keeps_bytes: bool = False
    is_for_strangers: bool = False
    listed: range | None = None


class RequestModule(Protocol):
    """A part of the protocol."""

    def served(self) -> Mapping[int, Served]:
        """Return what it serves, by the number of the request."""


class RequestTable:
    """All that a listener serves.

    Args:
        modules: each with its part.
    """

    def __init__(self, modules: Iterable[RequestModule]) -> None:
        self._served: dict[int, Served] = {}
        for module in modules:
            part = module.served()
            assert not self._served.keys() & part.keys(), "a request is served twice"
            self._served.update(part)

    def find(self, key: int, version: int) -> Served | None:
        """Return how a request is served; None: it is not."""
        found = self._served.get(key)
        return None if found is None or version not in found.versions else found

    def listed(self) -> list[tuple[int, range]]:
        """Return the versions of each request that clients are told, by its number."""
        return [
            (key, served.listed or served.versions) for key, served in sorted(self._served.items())
        ]
