"""The calls to one listener: their callers, their rights, their decoding, and their errors.

Each call has one `Caller`, made when it begins: a stream of requests costs one. A `MillraceError`
in a handler ends the call, is named in its trailing metadata, and is recorded with the caller.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.credentials import Credential
from millrace.broker.guard.demands import Demands
from millrace.broker.guard.guard import NOT_ACCEPTED, NOT_KNOWN, Guard
from millrace.broker.guard.rehearsal import Rehearsal
from millrace.broker.quotas import Quotas, Throttle
from millrace.broker.rpc.audit import AuditLog, printable
from millrace.broker.rpc.memory import LargeCalls
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.requests import RequestKind, decode_request
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import ANONYMOUS, Caller
from millrace.core.errors import (
    AccessUndecidedError,
    Appended,
    AuthenticationFailedError,
    BrokerBusyError,
    MalformedRequestError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.metadata.model import Listener
from millrace.core.quotas.concurrency import CallsUnderWay
from millrace.core.quotas.quota import QuotaKind
from millrace.proto.callers import client_id_from_metadata
from millrace.runtime import host
from millrace.runtime.clock import wall_now
from millrace.runtime.loop_time import LoopTime
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import Origin, ServerCall
from millrace.runtime.turns import Turns

UnaryMethod = tuple[Callable[[Any, GuardedCaller], Awaitable[Message]], RequestKind[Any], Demands]
"""A method with one request and one response, the class of its request, and what it demands."""
ForwardMethod = tuple[
    Callable[[bytes, Caller], Awaitable[Message]], RequestKind[Any], Callable[[Any], None]
]
"""A method that passes its request on as it came, what decodes the request, and what refuses one
before."""
StreamHandler = Callable[[ServerCall, GuardedCaller], Awaitable[None]]
StreamMethod = tuple[StreamHandler, Demands]
"""A method with a stream in each direction, and what it demands."""
LocalCall = Callable[[Message, GuardedCaller], Awaitable[Any]]
"""Serves a call with one request that is made in this process, for a caller that is known; returns
the response. Its time is part of what its maker does for the caller, who pays for that (`paid`)."""
UnaryCall = Callable[[bytes, ServerCall], Awaitable[bytes]]
"""Serves a call with one request: takes its bytes, returns those of the response."""
StreamCall = Callable[[ServerCall], Awaitable[None]]
"""Serves a call with a stream in each direction."""

_SOFTWARE_CHARACTERS_MAX: Final = 100
_CALL_DELAY_SECONDS_MAX: Final = 1.0
"""Longest delay of a call by a quota: its client waits for the answer, and not for long."""
_LARGE_BYTES: Final = 16 << 10
"""A larger request waits until its client owes nothing more, or gives the call up: it costs much
time, and nobody's life depends on it, as on a heartbeat."""
_STREAM_NANOSECONDS: Final = 1_000_000
"""What a client is charged for a stream that it opens."""

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class ServiceMethods:
    """The methods of a service, whichever protocol carries their calls.

    A call that fails as a whole raises `MillraceError`, which is recorded already.

    Attributes:
        name: of the service, in full.
        unary: methods with one request and one response, by name.
        streams: methods with a stream in each direction, by name.
        local: those with one request and one response, for calls that are made in this process.
    """

    name: str
    unary: Mapping[str, UnaryCall]
    streams: Mapping[str, StreamCall]
    local: Mapping[str, LocalCall]

    def by_path(self) -> dict[str, StreamCall]:
        """Return all methods by `/package.Service/Method`, each as one that has streams."""
        found = {name: _one_message(serve) for name, serve in self.unary.items()}
        return {f"/{self.name}/{name}": serve for name, serve in (found | {**self.streams}).items()}


def _one_message(serve: UnaryCall) -> StreamCall:
    async def call(call: ServerCall) -> None:
        request = await call.read()
        if request is None:
            raise MalformedRequestError("the call ended without its request")
        serving = serve(bytes(request), call)
        del request  # It may be large, and the handler may wait for long.
        await call.write(await serving)

    return call


def _without_padding(request: Any, size: int) -> Any:
    """Return a decoded request of so many bytes without the memory of fields that nobody knows."""
    request.DiscardUnknownFields()
    if 2 * request.ByteSize() > size:
        return request
    # What was discarded stays in the memory of the message as long as that is there.
    return type(request).FromString(request.SerializeToString())


class Calls:
    """Makes what serves calls from the methods of a service.

    Args:
        listener: which one of the broker it is.
        limits: of requests and answers.
        refusals: records each.
        turns: of the loop.
        quotas: of clients; None: brokers have none.
        guard: knows the callers; None: everybody may do everything.
        under_way: counts the calls of each caller; None: calls are not counted.

    Attributes:
        listener: as given.
        refusals: as given.
    """

    def __init__(
        self,
        listener: Listener,
        limits: LimitsConfig,
        refusals: Refusals,
        turns: Turns,
        *,
        quotas: Quotas | None = None,
        guard: Guard | None = None,
        under_way: CallsUnderWay | None = None,
    ) -> None:
        self._turns = turns
        self._under_way = under_way
        self._guard = guard
        self._quotas = quotas
        self.listener = listener
        self._limits = limits
        self._large_calls = LargeCalls(limits.connection_request_memory_bytes_max)
        self.refusals = refusals

    @property
    def asks_who_calls(self) -> bool:
        """Whether callers have to be known."""
        return self._guard is not None

    @property
    def guard(self) -> Guard | None:
        """Who knows them; None: nobody is asked."""
        return self._guard

    @property
    def audit(self) -> AuditLog:
        """The broker's audit log."""
        return self.refusals.audit

    def methods(
        self,
        service: str,
        *,
        unary: Mapping[str, UnaryMethod] | None = None,
        forwards: Mapping[str, tuple[ForwardMethod, Demands]] | None = None,
        streams: Mapping[str, StreamMethod] | None = None,
    ) -> ServiceMethods:
        """Return what serves the calls of a service.

        Args:
            service: its full name.
            unary: its methods with one request and one response, by name. A request has at most
                `request_entries_max` entries in a list, an answer at most `message_bytes_max`
                bytes.
            forwards: likewise, those that get the bytes of a request, which are valid; with a
                guard, without the fields that this broker does not know.
            streams: its other methods, by name. Their handlers ask for what they demand.
        """
        served, local = dict[str, UnaryCall](), dict[str, LocalCall]()
        for name, (method, kind, demands) in (unary or {}).items():
            served[name], local[name] = self._unary(name, method, kind, demands)
        for name, ((forward, kind, check), demands) in (forwards or {}).items():
            served[name], local[name] = self._unary(name, forward, kind, demands, check)
        opened = {name: self._stream(name, serve) for name, (serve, _) in (streams or {}).items()}
        return ServiceMethods(service, served, opened, local)

    def _unary(
        self,
        name: str,
        method: Callable[[Any, GuardedCaller], Awaitable[Message]],
        kind: RequestKind[_R],
        demands: Demands,
        check: Callable[[_R], None] | None = None,
    ) -> tuple[UnaryCall, LocalCall]:
        async def served(data: bytes, call: ServerCall) -> bytes:
            begun, size = host.monotonic_s(), len(data)
            try:
                async with self.begun(call, name) as caller:
                    answering = answer(data, caller)
                    del data  # The handler may wait for long.
                    return await self._limited(answering, caller, size)
            finally:
                self.refusals.metrics.requests.called(name, host.monotonic_s() - begun)

        async def answer(data: bytes, caller: GuardedCaller) -> bytes:
            await self._turns.give_way_to(len(data))
            request: Any = decode_request(kind, data, self._limits.request_entries_max)
            if check is None:
                if len(data) > _LARGE_BYTES:
                    request = _without_padding(request, len(data))
                data = b""
            handling = handled(request, data, caller)
            del request, data
            response = await handling
            await self._turns.give_way_to(self._checked_size(response))
            return response.SerializeToString()

        async def handled(request: Any, data: bytes, caller: GuardedCaller) -> Message:
            if caller.access is not None:
                await self._check_demands(demands, request, caller.access)
            if check is not None:
                check(request)
                if caller.access is not None or not data:
                    # A field of a later release may name something, to which nobody has asked for
                    # a right here; the controller may know it, and believes that it was asked for.
                    request.DiscardUnknownFields()
                    data = request.SerializeToString()
                request = data  # Of the message, nothing stays while the controller works.
            return await method(request, caller)

        async def called(request: Message, caller: GuardedCaller) -> Message:
            begun = host.monotonic_s()
            try:
                return await handled(request, b"", caller)
            except MillraceError as error:
                self.refusals.on_refused(error, caller, name)
                raise
            finally:
                self.refusals.metrics.requests.called(name, host.monotonic_s() - begun)

        return served, called

    async def _limited(self, answer: Coroutine[Any, Any, _R], caller: Caller, size: int) -> _R:
        """Return an answer, within its client's quota of time."""
        if self._quotas is None or not self._quotas.limits_requests:
            return await answer
        return await self._within_quota(self._quotas, answer, caller, size)

    async def _check_demands(self, demands: Demands, request: Any, access: Access) -> None:
        """Refuse a request as a whole if its caller may not do all that it demands.

        Raises:
            AccessDeniedError: names the first thing, where the caller may know the name.
        """
        assert demands.is_for_known, "it is served to brokers alone"
        work = self._turns.work()
        demanded = list(demands.of(request))
        await access.learn(demand for demand, _ in demanded)
        for demand, is_named in demanded:
            await work.give_way()
            refusal = access.refusal if is_named else access.refusal_by_id
            if (refused := refusal(*demand)) is not None:
                raise refused

    async def _within_quota(
        self,
        quotas: Quotas,
        answer: Coroutine[Any, Any, _R],
        caller: Caller,
        size: int,
    ) -> _R:
        """Begin a call once its client has paid for the earlier ones, and charge its time.

        Raises:
            BrokerBusyError: too many bytes of such calls wait.
        """
        throttle = quotas.throttle(QuotaKind.REQUEST, caller, lambda: None)
        timed = LoopTime(answer)
        try:
            if size > _LARGE_BYTES:
                throttle.begin()
                with self._held(throttle, caller, size):
                    async with throttle.alone("large"):
                        await _pay(throttle, None)
                        try:
                            return await timed
                        finally:  # The next one waits for what this one costs.
                            throttle.charge_time(timed.nanoseconds)
                            timed.nanoseconds = 0
            await _pay(throttle, _CALL_DELAY_SECONDS_MAX)
            await throttle.in_turn()
            return await timed
        finally:
            answer.close()  # Unless it has run.
            throttle.charge_time(timed.nanoseconds)
            throttle.close()

    async def paid(self, answer: Coroutine[Any, Any, _R], caller: Caller) -> _R:
        """Return an answer of another protocol, within its client's quota of time.

        It begins once the client has paid for the earlier ones, or has waited for a second.
        """
        return await self._limited(answer, caller, 0)

    def charge(self, caller: Caller, nanoseconds: int) -> None:
        """Charge a client for time that another task takes for its call."""
        if self._quotas is None or not self._quotas.limits_requests:
            return
        throttle = self._quotas.throttle(QuotaKind.REQUEST, caller, lambda: None)
        throttle.charge_time(nanoseconds)
        throttle.close()

    @contextmanager
    def _held(self, throttle: Throttle, caller: Caller, size: int) -> Iterator[None]:
        """Count the bytes of a large call if it is under a quota.

        Raises:
            BrokerBusyError: it would have to wait, and too many bytes do.
        """
        large, quota = self._large_calls, throttle.bucket
        if quota is None:
            yield
            return
        owners = (quota, caller.owner)
        if throttle.has_to_wait("large") and not large.fits(size, owners):
            setting = "connection_request_memory_bytes_max"
            self.refusals.metrics.limit_reached(setting)
            raise BrokerBusyError(
                f"calls of more than {_LARGE_BYTES} bytes wait for a quota of request time with "
                f"as many bytes as limits.{setting} allows: make fewer at a time, or ask who runs "
                "the cluster for a larger quota"
            )
        with large.held(size, owners):
            yield

    def _stream(self, name: str, serve: StreamHandler) -> StreamCall:
        async def served(call: ServerCall) -> None:
            async with self.begun(call, name) as caller:
                await self._open(caller)
                access = caller.access
                if access is None or access.credential is None:
                    await serve(call, caller)
                    return
                handled: Awaitable[None] = serve(call, caller)
                await run_until_first(_awaited(handled), access.watch())

        return served

    async def _open(self, caller: Caller) -> None:
        """Charge a stream's client for opening it, as for a call."""
        if self._quotas is None or not self._quotas.limits_requests:
            return
        throttle = self._quotas.throttle(QuotaKind.REQUEST, caller, lambda: None)
        try:
            await _pay(throttle, _CALL_DELAY_SECONDS_MAX)
            await throttle.in_turn()
            throttle.charge_time(_STREAM_NANOSECONDS)
        finally:
            throttle.close()

    def stranger(self, call: Origin) -> GuardedCaller:
        """Return who calls before anybody is known: it may do what nobody may."""
        caller = _nameless(call, self.listener)
        if self._guard is None:
            return caller
        return replace(caller, access=Access(self._guard, NOBODY, None))

    async def admit(self, call: ServerCall, method: str) -> None:
        """Find out who makes a call, of which nothing else has been read.

        Args:
            call: has `on_known` called.
            method: its path.

        Raises:
            MillraceError: nobody may call so.
        """
        async with self.begun(call, method.rpartition("/")[2]):
            pass

    def _check_peer(self, call: Origin) -> None:
        """Refuse a call by what its connection proves.

        Raises:
            AuthenticationFailedError: nobody may call so.
        """

    @contextmanager
    def _counted(self, caller: GuardedCaller, method: str) -> Iterator[None]:
        """Count a call while it lasts.

        Raises:
            BrokerBusyError: its caller has as many as it may, and who may not is refused.
        """
        under_way = self._under_way
        if under_way is None:
            yield
            return
        if setting := under_way.begin(caller):
            self.refusals.metrics.limit_reached(setting)
            why = (
                f"{caller.principal!r} has as many calls or connections at this broker as "
                f"limits.{setting} allows: end some, or ask who runs the cluster to raise it"
            )
            if self._guard is None or self._guard.is_enforced:
                raise BrokerBusyError(why)
            self.refusals.on_rehearsed(caller, method, why)
            yield
            return
        try:
            yield
        finally:
            under_way.end(caller)

    @asynccontextmanager
    async def begun(
        self, call: Origin, method: str, shown: Credential | None = None
    ) -> AsyncIterator[GuardedCaller]:
        """Provide a call's caller; record the error of its handler.

        Args:
            call: which has `on_known` called; a connection whose calls share a caller is one, too.
            method: its name, without the service.
            shown: what the caller has proved itself with on the connection; None: what it shows is
                in the metadata.

        Raises:
            MillraceError: nobody may call so.
        """
        caller = _nameless(call, self.listener)
        try:
            client_id = client_id_from_metadata(call.metadata)
            caller = replace(caller, client_id=client_id)
            if self._guard is not None:
                caller = await self._identified(self._guard, call, caller, method, shown=shown)
            self._check_peer(call)
            call.on_known()
            with self._counted(caller, method):
                yield caller
        except MillraceError as error:
            self.refusals.on_refused(error, caller, method)
            raise

    async def knows(self, call: Origin) -> bool:
        """Return whether it is known by the connection alone who calls: `begun` lets it in."""
        if self._guard is None or not self._guard.is_enforced:
            return True
        try:
            identity, _ = await self._guard.prove(
                call.metadata, call.principal, call.address.rpartition(":")[0]
            )
        except (RefusedCredentialError, AccessUndecidedError):
            return False
        return self._guard.knows(identity)

    def check_again(self, caller: GuardedCaller, method: str) -> None:
        """Check again what proves a caller whose connection goes on.

        It lasts no longer than the caller was told, also where the token counts longer by now: the
        caller has to show it again (K10).

        Raises:
            AuthenticationFailedError: it does not count any more, as the audit log says.
        """
        access = caller.access
        if access is None or access.credential is None:
            return
        ends_at = access.credential.identity.expires_at
        try:
            if ends_at is not None and wall_now() >= ends_at and access.guard.is_enforced:
                raise RefusedCredentialError("the connection was not renewed before its end")
            access.guard.check(access.credential)
        except RefusedCredentialError as error:
            self.audit.on_unknown(caller, method, str(error))
            raise AuthenticationFailedError(NOT_ACCEPTED) from None

    async def _identified(
        self,
        guard: Guard,
        call: Origin,
        caller: GuardedCaller,
        method: str,
        *,
        shown: Credential | None,
    ) -> GuardedCaller:
        """Return the caller as what it proves to be.

        Raises:
            AuthenticationFailedError: it proves nothing that counts here, as the audit log says.
        """
        if not guard.is_enforced:
            return await self._rehearsed(guard, call, caller, method, shown=shown)
        try:
            identity, credential = await _proved(guard, call, shown)
        except RefusedCredentialError as error:
            self.audit.on_unknown(caller, method, str(error))
            raise AuthenticationFailedError(NOT_ACCEPTED) from None
        guard.check_known(identity)
        access = Access(guard, identity, credential)
        return replace(caller, principal=identity.principal, access=access)

    async def _rehearsed(
        self,
        guard: Guard,
        call: Origin,
        caller: GuardedCaller,
        method: str,
        *,
        shown: Credential | None,
    ) -> GuardedCaller:
        """Return the caller as what it proves to be, and let it through."""
        identity, credential, problem = NOBODY, None, NOT_KNOWN
        try:
            identity, credential = await _proved(guard, call, shown)
        except RefusedCredentialError as error:
            problem = str(error)
        except AccessUndecidedError:
            problem = ""
        caller = replace(caller, principal=identity.principal)
        tell = partial(self.refusals.on_rehearsed, caller, method)
        if problem and not guard.knows(identity):
            tell(problem)
        return replace(caller, access=Access(Rehearsal(guard, tell), identity, credential))

    def _checked_size(self, response: Message) -> int:
        """Return the bytes of an answer.

        Raises:
            MessageTooLargeError: they are too many.
        """
        size, size_max = response.ByteSize(), self._limits.message_bytes_max
        if size > size_max:
            raise MessageTooLargeError(
                f"the answer has {size} bytes, and the setting limits.message_bytes_max allows "
                f"{size_max}: ask for less at a time, or raise it",
                appended=Appended.MAYBE,
            )
        return size


async def _proved(
    guard: Guard, call: Origin, shown: Credential | None
) -> tuple[Identity, Credential | None]:
    """Return who makes a call, and what proves it; see `Guard.prove`."""
    if shown is None:
        return await guard.prove(call.metadata, call.principal, call.address.rpartition(":")[0])
    guard.check(shown)
    return shown.identity, shown


async def _pay(throttle: Throttle, seconds_max: float | None) -> None:
    """Wait until a client has paid for its earlier calls, or for so long; None: without end."""
    throttle.begin()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            await throttle.wait()


async def _awaited(handled: Awaitable[None]) -> None:
    await handled


def _nameless(call: Origin, listener: Listener) -> GuardedCaller:
    """Return the caller of a call, without the client id, which may be malformed."""
    software = next((str(value) for key, value in call.metadata if key == "user-agent"), "")
    return GuardedCaller(
        principal=call.principal or ANONYMOUS,
        client_id="",
        address=call.address,
        listener=listener,
        software=printable(software[:_SOFTWARE_CHARACTERS_MAX]),
    )
