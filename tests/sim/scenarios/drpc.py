"""Scenarios of DRPC alone: its two ends as they ship, with calls that know what must come back.

A message says whose it is: which call of which client, and its number there. Servers answer each
with itself. So both ends see at once when a message is not whole, comes in another order, or
belongs to another call (P78). A call that ends well has all its answers (P16). A connection that
drains answers what it was sent (P79): where nothing fails, no call does.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.machines.byte_connections import ByteEnd
from tests.sim.machines.coordination import SimulatedStore
from tests.sim.machines.machine import BrokerMachine, ClientMachine
from tests.sim.machines.network import Network
from tests.sim.scenarios.rules import InAHurry
from tests.sim.scenarios.scenario import Scenario, again
from tests.sim.settings import EVERYWHERE
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.runtime.transport.calls import CallError, Message, ServerCall, Status
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.client import DrpcConnection, DrpcStream, call, connect
from millrace.runtime.transport.drpc.server import DrpcServer
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.runtime.transport.served_connections import ServerLimits

_PORT: Final = 7096
_STREAM: Final = "/Echo/Stream"
_UNARY: Final = "/Echo/Unary"
_SERVERS: Final = 2
_CALLERS: Final = 5
_CONNECTION: Final = ConnectionLimits(
    message_bytes_max=1 << 20, keepalive_ms=2_000, dead_after_ms=10_000
)
_LIMITS: Final = ServerLimits(
    connection=_CONNECTION,
    connections_max=100,
    connections_per_host_max=100,
    received_bytes_max=1 << 20,
    silence_ms_max=10_000,
    idle_ms_max=3_000,
    age_ms_max=1_000,
    message_ms_max=10_000,
)
_METADATA: Final = {wire.KEEP_ALIVE: str(_CONNECTION.keepalive_ms)}
_HEAD_BYTES: Final = 12
_PATIENCE_S: Final = 30.0


def _message(call_id: int, number: int, size: int) -> bytes:
    head = call_id.to_bytes(8, "big") + number.to_bytes(4, "big")
    return head + random.Random(head).randbytes(size)


def _checked(where: str, message: Message, call_id: int | None, number: int) -> int:
    """Return the call of a message that is the next one of its call, and whole.

    Raises:
        Violation: it is not.
    """
    data = bytes(message)
    found, at = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:_HEAD_BYTES], "big")
    if data != _message(found, at, max(len(data) - _HEAD_BYTES, 0)):
        raise Violation(f"{where} gets {len(data)} bytes that nobody sent as a message")
    if call_id is not None and found != call_id:
        raise Violation(f"{where} gets a message of call {found} in call {call_id}")
    if at != number:
        raise Violation(f"{where} gets message {at} of call {found} in the place of {number}")
    return found


class Echoes:
    """Servers that echo, and clients that call them; a `Cluster` of the simulator."""

    is_calm = False
    """Whether nothing fails, so that no call may."""
    families: Sequence[Family] = ()
    administered = None

    def __init__(self, world: World) -> None:
        self.network = Network(world)
        self.store = SimulatedStore(world, self.network)
        self._world = world
        self._hosts = {f"server-{number}": f"10.0.0.{number + 1}" for number in range(_SERVERS)}
        servers = {
            name: ClientMachine(world, name, self.network, host=host)
            for name, host in self._hosts.items()
        }
        self.machines = cast(Mapping[str, BrokerMachine], servers)  # No fault here asks for more.
        self.clients = {
            f"caller-{number}": ClientMachine(world, f"caller-{number}", self.network)
            for number in range(_CALLERS)
        }
        self._ids = itertools.count(1)
        self._done = 0
        self._done_before = 0
        self._broken: BaseException | None = None

    # --- Cluster -----------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield

    def start(self) -> None:
        for name, machine in self.machines.items():
            cast(ClientMachine, machine).process.begin(partial(self._serve, self._hosts[name]))
        for name, client in self.clients.items():
            client.process.begin(partial(self._watched, partial(self._call_all, name)))

    def role(self, role: str) -> list[str]:
        del role
        return []

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def begin_quiet(self) -> None:
        self._done_before = self._done

    def end_quiet(self) -> None:
        if self._done - self._done_before < 2 * _CALLERS:
            raise Violation(f"{self._done - self._done_before} calls ended well in quiet")

    def finish(self) -> Mapping[str, float]:
        return {"operations": self._done}

    def end(self) -> None:
        for machine in (*self.machines.values(), *self.clients.values()):
            cast(ClientMachine, machine).process.bury()

    # --- Servers -----------------------------------------------------------------------------

    async def _serve(self, host: str) -> None:
        server = DrpcServer(
            _LIMITS,
            status_of=lambda error: Status.UNAVAILABLE,
            on_failure=self._fail,
            on_ended=self._on_ended,
        )
        server.methods |= {_STREAM: self._echo, _UNARY: self._echo}
        server.bind(f"{host}:{_PORT}")
        await server.serve()
        await self._watched(server.watch)

    def _on_ended(self, address: str, reason: str) -> None:
        if self.is_calm and reason != "it is idle":
            self._fail(Violation(f"a server ends a connection of {address}: {reason}"))

    def _fail(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error

    async def _echo(self, call: ServerCall) -> None:
        call_id: int | None = None
        dice = self._world.random(f"echo {next(self._ids)}")
        for number in itertools.count():
            message = await call.read()
            if message is None:
                return
            call_id = _checked("a server", message, call_id, number)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
            await call.write(message)

    # --- Clients -----------------------------------------------------------------------------

    async def _watched(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._fail(error)

    async def _call_all(self, name: str) -> None:
        dice = self._world.random(f"calls {name}")
        ahead, memory = ReadAhead(), ReceiveMemory(1 << 20)
        while True:
            address = f"{self._hosts[dice.choice(list(self._hosts))]}:{_PORT}"
            try:
                async with asyncio.timeout(1):
                    connection = await connect(address, _CONNECTION, ahead=ahead, memory=memory)
            except (OSError, TimeoutError) as error:
                self._judge(str(error))
                await asyncio.sleep(0.2)
                continue
            # A call takes its place at once where the one before has ended.
            while connection.is_free and dice.random() < 0.9:
                if dice.random() < 0.05:  # Until it counts as idle, more or less.
                    await asyncio.sleep(2.5 + 2 * dice.random())
                    continue
                if dice.random() < 0.5:
                    await self._ask(connection, dice)
                else:
                    await self._stream(connection, dice)
            connection.abort("enough")
            await asyncio.sleep(dice.random() * 0.1)

    def _judge(self, problem: str) -> None:
        if self.is_calm:
            raise Violation(f"nothing fails, and a call does: {problem}")

    async def _ask(self, connection: DrpcConnection, dice: random.Random) -> None:
        call_id = next(self._ids)
        request = _message(call_id, 0, dice.choice((0, 10, 1_000, 30_000)))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await call(connection, _UNARY, request, _METADATA)
        except (CallError, TimeoutError) as error:
            self._judge(str(error))
            return
        _checked("a client", answer, call_id, 0)
        if len(answer) != len(request):
            raise Violation("an answer is not as long as its request")
        self._done += 1

    async def _stream(self, connection: DrpcConnection, dice: random.Random) -> None:
        call_id = next(self._ids)
        sizes = [dice.choice((0, 10, 200, 1_000, 30_000)) for _ in range(dice.randrange(1, 30))]
        stream = connection.stream(_STREAM, _METADATA)
        writing = asyncio.create_task(self._write(stream, call_id, sizes, dice))
        is_given_up = dice.random() < 0.1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for number in itertools.count():
                    message = await stream.read()
                    if message is None:
                        sent = await writing
                        if number != sent:
                            raise Violation(f"a call ended well with {number} answers to {sent}")
                        break
                    _checked("a client", message, call_id, number)
                    if is_given_up and number == len(sizes) // 2:
                        return
            self._done += 1
        except (CallError, TimeoutError) as error:
            self._judge(str(error))
        finally:
            writing.cancel()
            stream.cancel()

    async def _write(
        self, stream: DrpcStream, call_id: int, sizes: Sequence[int], dice: random.Random
    ) -> int:
        sent = 0
        try:
            for size in sizes:
                if stream.is_draining:
                    break
                await stream.write(_message(call_id, sent, size))
                sent += 1
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.random() * 0.05)
            await stream.end_writing()
        except CallError:
            pass  # The reader is told, too.
        return sent


class CalmEchoes(Echoes):
    """The same, without any fault: connections drain when they are a few seconds old."""

    is_calm = True


def _late_answers(scene: Scene) -> Undo | None:
    """What brokers send by the connections that are there now comes late, in order."""
    found = scene.network.ends_of(list(scene.machines))
    ends = [
        end
        for end in found
        if isinstance(end, ByteEnd) and end.peer.process.machine.name not in scene.machines
    ]
    for end in ends:
        end.slow_down(1 << 30, 9 * SECOND)

    def undo() -> None:
        for end in ends:
            end.slow_down(1 << 30, 0)

    return undo if ends else None


LATE_ANSWERS: Final = Family(
    "F81", "answers by the connections that are there come late", _late_answers, (SECOND, SECOND)
)


class GivenUp(InAHurry):
    """Producers give connections up whose answers are late, and connect again."""

    drpc_shares = EVERYWHERE
    topics = (
        TopicPlan(
            partitions=1,
            loads=3 * (Load(every_us=50 * MILLISECOND, burst_max=3, request_timeout_ms=100),),
        ),
    )


# fmt: off
DRPC_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("P78, P79", "nothing fails, and connections that are old drain", CalmEchoes,
             by_day=True, seeds=3, quiet_s=20,
             mutants=["messages of a call are handed out in another order",
                      "a packet of a call that has ended goes to the next one",
                      "a frame is handed over before it is whole",
                      "who drains closes before it has answered"]),
    Scenario("P16, P78", "connections break, in the middle of frames, too", Echoes,
             [*again("F80", 2, 1, 10, 0.5), *again("F81", 3, 3, 3, 2), *again("F82", 2.5, 4, 3, 1),
              *again("F17", 2.2, 2, 5, 0.1)],
             by_day=True, seeds=3, quiet_s=20,
             mutants=["a call whose connection broke has ended well"]),
    Scenario("P16", "connections to brokers break inside frames", GivenUp,
             [*again("F80", 5, 0.7, 20, 0.5)], by_day=True, seeds=2, quiet_s=15,
             mutants=["what a broken stream has not answered counts as written"]),
    Scenario("P78", "answers come late, by connections that were given up", GivenUp,
             again(LATE_ANSWERS, 6, 9, 3, 8), seeds=4, quiet_s=15),
)
# fmt: on
