"""Calls brokers: a given one, or any that answers.

There is one connection to each address, which is opened when it is first used. The first call on it
is `Hello`: a wrong cluster is detected there, not in the middle of a stream.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from millrace.client import events
from millrace.client._cluster import wire
from millrace.client._cluster.asking_order import AskingOrder
from millrace.client._cluster.broker_channel import BrokerChannel
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.latencies import Latencies
from millrace.client._cluster.metadata import Metadata
from millrace.client._cluster.pauses import spread
from millrace.client._cluster.shared_tasks import SharedTasks
from millrace.client._threads import fork
from millrace.client._threads.logs import Log
from millrace.client._threads.tasks import CANCELLED_BY_OTHERS, cancellations, cancellations_so_far
from millrace.core.addresses import host_of, is_loopback, parse_addresses
from millrace.core.callers import client_id_problem
from millrace.core.errors import (
    AccessDeniedError,
    Appended,
    ClosedError,
    ConnectionFailedError,
    InvalidConfigError,
    MillraceError,
    RetriableError,
)
from millrace.core.ids import BrokerId
from millrace.core.pauses import doubled_pause
from millrace.runtime.transport.calls import CallError, Status
from millrace.runtime.transport.credentials import ClientCredentials, TlsFiles
from millrace.runtime.transport.diagnosis import tls_problem
from millrace.runtime.transport.tokens import Token

_log = Log(__name__)

_CONNECT_TIMEOUT_S: Final = 10.0
_PAUSE_MS_MIN: Final = 100
_PAUSE_MS_MAX: Final = 1000
"""Pauses before the first addresses are tried again."""
TOLD_AFTER_S: Final = 3.0
"""How long they are tried before that is told: the port may be wrong."""
DOUBT_S: Final = 2.0
"""A call that has failed for this long asks other brokers before the one that answered last."""

Result = TypeVar("Result")


class ChangeResponse(Protocol):
    """The response to a request that changes something."""

    @property
    def metadata_epoch(self) -> int: ...


ChangeResult = TypeVar("ChangeResult", bound=ChangeResponse)
Failure = TypeVar("Failure", bound=MillraceError)


class Calls:
    """The connections of one client, and its calls.

    Args:
        bootstrap: `host:port`, several separated by commas, or a sequence of them. They are tried
            in turn until one answers; from then on the brokers of the metadata are known as well.
            Until then they are tried for the time of a call, unless they are all of this machine:
            such as a Service lead to a broker that has just been killed, and then to another one.
            That is logged when it takes long: nobody knows whether a broker will come.
        client_id: name of the client in the brokers' logs; see `client_id_problem`.
        timeout_ms: how long one call may take.
        uses_drpc: streams go by DRPC, where a broker offers it.
        tls: where the credentials are; None: connections are in plain text.
        token: goes with each call; None: there is none.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str,
        timeout_ms: int = 30_000,
        uses_drpc: bool = True,
        tls: TlsFiles | None = None,
        token: Token | None = None,
    ) -> None:
        fork.check()
        try:
            self.order = AskingOrder(parse_addresses(bootstrap))
        except ValueError as error:
            raise InvalidConfigError(f"bootstrap: {error}") from error
        if problem := client_id_problem(client_id):
            raise InvalidConfigError(problem)
        self.client_id = client_id
        self.timeout_s = timeout_ms / 1000
        self.metadata = Metadata()
        self._credentials = None if tls is None else ClientCredentials(tls, _tell_problem)
        self._token = token
        self._connector = None
        if uses_drpc:
            self._connector = wire.new_connector(client_id, self._credentials, self._token)
        self._connections: dict[str, Connection] = {}
        self._connecting: SharedTasks[str, Connection] = SharedTasks()
        self._may_come: set[str] = set()
        """Addresses where nobody answered the last time, which may pass."""
        self._has_told_waiting = False
        self.call_seconds: dict[str, Latencies] = {}
        """The time of calls with one request and one response, by method."""
        self.call_failures: Counter[str] = Counter()
        """Calls without an answer, and those refused as a whole, by error."""
        self.cluster_id = ""
        self.batch_bytes_max = wire.MESSAGE_BYTES_MAX
        """Bytes of records that fit into a request to any broker that was greeted."""

    # Connections.

    async def connection(self, address: str) -> Connection:
        """Return the connection to a broker, opened and greeted.

        Raises:
            ConnectionFailedError: it cannot be reached.
            MillraceError: it refuses this client.
        """
        while True:
            connection = self._connections.get(address)
            if connection is None:
                connection = await self._connecting.result(address, partial(self._open, address))
            if not connection.is_given_up:
                return connection

    async def _open(self, address: str) -> Connection:
        connection = self._connections[address] = await self._connect(address)
        return connection

    async def _connect(self, address: str) -> Connection:
        fork.on_connect()
        channel = BrokerChannel(
            address,
            client_id=self.client_id,
            on_called=self._on_called,
            connector=self._connector,
            credentials=self._credentials,
            token=self._token,
        )
        connection = Connection(address, channel)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                connection.hello = await channel.greet(
                    self.cluster_id, self.metadata.drpc_address_of(address)
                )
        except BaseException as error:
            await connection.channel.close()
            if isinstance(error, CallError):
                problem = await tls_problem(error, address, self._credentials)
                self._note_failure(address, may_pass=not problem and wire.may_pass(error))
                raise wire.error_from_call(error, address, problem) from error
            self._note_failure(address, may_pass=isinstance(error, TimeoutError))
            if isinstance(error, TimeoutError):
                raise ConnectionFailedError(
                    f"the broker at {address} did not answer in {_CONNECT_TIMEOUT_S:g} s"
                ) from None
            raise
        self.cluster_id = self.cluster_id or connection.hello.cluster_id
        if limit := connection.hello.message_bytes_max:
            self.batch_bytes_max = min(self.batch_bytes_max, wire.batch_bytes_within(limit))
        return connection

    def _note_failure(self, address: str, *, may_pass: bool) -> None:
        if may_pass:
            self._may_come.add(address)
        else:
            self._may_come.discard(address)

    def _on_called(self, method: str, seconds: float) -> None:
        latencies = self.call_seconds.get(method)
        if latencies is None:
            latencies = self.call_seconds[method] = Latencies()
        latencies.observe(seconds)

    async def broker(self, broker_id: BrokerId) -> Connection:
        """Return the connection to a broker by its id."""
        info = self.metadata.brokers.get(broker_id)
        if info is None:
            raise ConnectionFailedError(f"broker {broker_id} is not in the cluster's metadata")
        if not info.address:
            raise ConnectionFailedError(
                f"broker {broker_id} has no address (yet) for clients of this listener: it has no "
                "outside listener, or does not know its outside address"
            )
        connection = await self.connection(info.address)
        if connection.hello.broker_id != broker_id:  # It has moved, and another replaced it.
            raise ConnectionFailedError(
                f"at {info.address} is broker {connection.hello.broker_id} now, not {broker_id}"
            )
        return connection

    async def drop(self, connection: Connection) -> None:
        """Forget a connection that failed; the next use opens another."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            await connection.give_up()

    async def close(self) -> None:
        """Close every connection."""
        connecting = self._connecting.cancel()
        connections, self._connections = self._connections, {}
        # At the same time: one that does not end must not leave the connections of others open. Not
        # `gather` for the tasks, as in `Tasks.end`.
        await asyncio.gather(
            *(connection.give_up() for connection in connections.values()),
            *(asyncio.wait([task]) for task in connecting),
        )
        if self._credentials is not None:
            self._credentials.close()

    # Calls.

    def addresses(self) -> list[str]:
        """Return where to ask, in this order."""
        return self.order.addresses(self.metadata.brokers.values())

    async def call(
        self,
        method: Callable[[Connection], Awaitable[Result]],
        *,
        attempt_s: Callable[[], float] | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Call any broker that answers, the last good one first.

        Args:
            method: the call; its errors go to the caller, unless another broker could do better.
            attempt_s: called before each attempt; returns how long this broker may take before the
                next is asked; None: all the time.
            timeout_s: how long all of them may take; None: the client's time-out.

        Raises:
            RetriableError: those that answer refuse it for now, as without a controller.
            ConnectionFailedError: none answers; says why.

        Either says `appended` MAYBE where one of those that were asked may have done it.
        """
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        deadline = begun_at + (self.timeout_s if timeout_s is None else timeout_s)
        waiting = deque(self.addresses())
        again: set[str] = set()
        problems = dict[str, None]()
        rounds = 0
        last: ConnectionFailedError | None = None
        refusal: RetriableError | None = None
        in_doubt = False
        while (left_s := deadline - loop.time()) > 0:
            if not waiting:
                rounds += 1
                is_settled = in_doubt or refusal is not None
                if is_settled or not await self._waits(rounds, left_s, begun_at, problems):
                    break
                waiting.extend(self.addresses())
                continue
            address = waiting.popleft()
            # The last one gets all the remaining time: there is no other to ask.
            limit_s = left_s if attempt_s is None or not waiting else min(attempt_s(), left_s)
            is_asked = False
            try:
                async with asyncio.timeout(limit_s):
                    try:
                        connection = await self.connection(address)
                    except (ClosedError, AccessDeniedError):
                        raise
                    except MillraceError as error:
                        problems[error.message] = None
                        continue
                    is_asked = True
                    result = await self.on(connection, method)
            except TimeoutError:
                problems[f"the broker at {address} did not answer in {limit_s:.3g} s"] = None
                self.order.on_silence(address)
                in_doubt = in_doubt or is_asked
                continue
            except RetriableError as error:  # Another one may be better off.
                refusal = error
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                continue
            except ConnectionFailedError as error:
                last = error
                in_doubt = True
                # A connection that was there broke. There may be a new one, the last of all.
                is_gone = address not in self._connections
                is_cancelled = isinstance(error.__cause__, asyncio.CancelledError)
                if (is_gone or is_cancelled) and address not in again:
                    again.add(address)
                    waiting.append(address)
                continue
            self.order.on_used(address)
            return result
        if refusal is not None:
            raise as_maybe(refusal) if in_doubt else refusal
        if last is None:
            why = "; ".join(problems)
            last = ConnectionFailedError(
                f"no broker answered: {why}"
                if in_doubt
                else f"no broker can be reached: {why}. Is one running there?"
            )
        raise as_maybe(last) if in_doubt else last

    async def _waits(
        self, rounds: int, left_s: float, begun_at: float, problems: Iterable[str]
    ) -> bool:
        """Pause before the first addresses are tried again; False: that would not help.

        Args:
            rounds: in which each of them was tried.
            left_s: time that the call has.
            begun_at: when it began, by the loop's time.
            problems: why none has answered.
        """
        addresses = self.addresses()
        is_new = not self.metadata.brokers and not self.order.first
        is_elsewhere = not all(is_loopback(host_of(address)) for address in addresses)
        if not is_new or not is_elsewhere or self._may_come.isdisjoint(addresses):
            return False
        (pause_ms,) = spread(doubled_pause(rounds, _PAUSE_MS_MIN, _PAUSE_MS_MAX))
        if pause_ms / 1000 >= left_s:
            return False
        waited_s = asyncio.get_running_loop().time() - begun_at
        if waited_s >= TOLD_AFTER_S and not self._has_told_waiting:
            self._has_told_waiting = True
            events.NO_BROKER_YET.log(_log, error="; ".join(problems), left_s=round(left_s))
        await asyncio.sleep(pause_ms / 1000)
        return True

    async def change(
        self, method: Callable[[Connection], Awaitable[ChangeResult]], timeout_s: float
    ) -> ChangeResult:
        """Make a change through any broker that answers, as `call` does.

        Later answers about the cluster must include it.
        """
        response = await self.call(method, timeout_s=timeout_s)
        self.metadata.epoch = max(self.metadata.epoch, response.metadata_epoch)
        return response

    async def on(
        self, connection: Connection, method: Callable[[Connection], Awaitable[Result]]
    ) -> Result:
        """Call this broker, with the client's time-out.

        Raises:
            ConnectionFailedError: no answer.
            MillraceError: the broker refused the call as a whole.
        """
        try:
            return await self._on(connection, method)
        except MillraceError as error:
            self.call_failures[error.name()] += 1
            raise

    async def _on(
        self, connection: Connection, method: Callable[[Connection], Awaitable[Result]]
    ) -> Result:
        begun = await cancellations_so_far()
        try:
            async with asyncio.timeout(self.timeout_s):
                return await method(connection)
        except asyncio.CancelledError as cancellation:
            if cancellations() > begun:
                raise
            if connection.is_given_up:
                raise connection.given_up() from None
            raise ConnectionFailedError(
                f"the call to the broker at {connection.address} {CANCELLED_BY_OTHERS}"
            ) from cancellation
        except CallError as error:
            if error.refusal is not None:
                self.order.on_answer(connection.address)
                raise error.refusal from error
            if error.status in (Status.UNAVAILABLE, Status.CANCELLED):
                await self.drop(connection)
            raise wire.error_from_call(error, connection.address) from error
        except TimeoutError:
            raise ConnectionFailedError(
                f"the broker at {connection.address} did not answer in {self.timeout_s:g} s"
            ) from None


def as_maybe(error: Failure) -> Failure:
    """Return an error with `appended` MAYBE: this or another attempt may have succeeded."""
    again = error.again(Appended.MAYBE)
    again.__cause__ = error.__cause__
    return again


def _tell_problem(problem: str) -> None:
    events.TLS_FILES_UNUSABLE.log(_log, error=problem)
