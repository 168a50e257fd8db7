"""A toy to prove the simulator with: one machine numbers values and keeps them, two others copy.

It has no election and no epochs. The leader is always the same machine; it acknowledges a value
once it is flushed, and after a crash it rewrites what it finds before it goes on, because what is
in the page cache need not be on the disk. `ToyCluster` keeps what it promises under its families of
faults. `CarelessCluster` acknowledges what is not flushed, and the simulator has to find that out.
"""

import errno
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.checkers.check import check
from tests.checkers.history import INFO, INVOKE, OK, Op, Recorder, Send
from tests.checkers.report import Expectations
from tests.sim.coordination import SimulatedStore
from tests.sim.faults import FAMILIES
from tests.sim.machine import Machine, NodeEvent, Terminated
from tests.sim.network import (
    Network,
    NetworkEvent,
    Received,
    Stream,
    StreamEnded,
    StreamOpened,
    StreamReceived,
)
from tests.sim.world import MILLISECOND, Violation, World

from millrace.broker.storage.file_system import File

LEADER: Final = "toy-0"
FOLLOWERS: Final = ("toy-1", "toy-2")
PATH: Final = "/00.log"
KEY: Final = 0

_ENTRY: Final = struct.Struct("<qI")

_SEND_EVERY_US: Final = 100 * MILLISECOND
_CARELESS_FLUSH_EVERY: Final = 20
_RETRY_US: Final = 500 * MILLISECOND


@dataclass(frozen=True, slots=True)
class Append:
    """Client to leader."""

    value: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Leader to client."""

    value: int
    offset: int


@dataclass(frozen=True, slots=True)
class Read:
    """Client to leader: everything from an offset on."""

    offset: int


@dataclass(frozen=True, slots=True)
class Values:
    """Leader to client."""

    offset: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Leader to follower, in order; the stream's request is how many it has."""

    offset: int
    value: int


class ToyLeader:
    """See the module; implements `Node`."""

    def __init__(self, *, is_careless: bool) -> None:
        self._is_careless = is_careless
        self._values: list[int] = []
        self._offsets: dict[int, int] = {}
        self._flushed = 0
        self._asked: dict[int, list[str]] = {}
        self._followers: list[Stream] = []

    def start(self, machine: Machine) -> None:
        self._machine = machine
        for value in recover(machine):
            self._take(value)
        self._flushed = len(self._values)
        self._file = machine.disk.open(PATH)

    def on_message(self, event: NodeEvent) -> None:
        match event:
            case Terminated():
                self._machine.exit("told to")
            case Received(sender, Append(value)):
                self._append(sender, value)
            case Received(sender, Read(offset)):
                values = tuple(self._values[offset : self._flushed][:100])
                self._machine.network.send(sender, Values(offset, values))
            case StreamOpened(stream, int(count)):
                self._followers.append(stream)
                for offset in range(count, self._flushed):
                    stream.send(Copy(offset, self._values[offset]))
            case StreamEnded(stream):
                self._followers.remove(stream)

    def on_timer(self, token: object) -> None:
        raise AssertionError(token)

    def crash(self) -> None:
        pass

    def _append(self, sender: str, value: int) -> None:
        offset = self._offsets.get(value)
        if offset is not None and offset < self._flushed:
            self._machine.network.send(sender, Appended(value, offset))
            return
        self._asked.setdefault(value, []).append(sender)
        if offset is not None:
            return
        offset = self._take(value)

        def write() -> None:
            write_whole(self._file, entry_of(value))
            if not self._is_careless or offset % _CARELESS_FLUSH_EVERY == 0:
                self._file.fdatasync()

        self._machine.run("disk", write, lambda result: self._written(value, offset, result))

    def _take(self, value: int) -> int:
        self._offsets[value] = len(self._values)
        self._values.append(value)
        return len(self._values) - 1

    def _written(self, value: int, offset: int, result: object) -> None:
        if isinstance(result, Exception):
            self._machine.exit(f"the disk failed: {result}")
        assert offset == self._flushed
        self._flushed += 1
        self._acknowledge(value, offset)
        for stream in self._followers:
            stream.send(Copy(offset, value))

    def _acknowledge(self, value: int, offset: int) -> None:
        for client in self._asked.pop(value, ()):
            self._machine.network.send(client, Appended(value, offset))


class ToyFollower:
    """Copies into memory; asks for the rest whenever its stream ends."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def start(self, machine: Machine) -> None:
        self._machine = machine
        self._connect()

    def on_message(self, event: NodeEvent) -> None:
        match event:
            case Terminated():
                self._machine.exit("told to")
            case StreamReceived(stream, Copy(offset, value)) if stream is self._stream:
                if offset == len(self.values):
                    self.values.append(value)
                elif self.values[offset] != value:
                    raise Violation(f"{self._machine.name} has another value at {offset}")
            case StreamEnded(stream) if stream is self._stream:
                self._machine.clock.set_timer(200, "connect")

    def on_timer(self, token: object) -> None:
        self._connect()

    def crash(self) -> None:
        pass

    def _connect(self) -> None:
        self._stream = self._machine.network.open_stream(LEADER, len(self.values))


class ToyClient:
    """Sends one value after another, and reads everything again and again."""

    name = "client"
    is_powered = True
    is_listening = True

    def __init__(self, world: World, network: Network, recorder: Recorder) -> None:
        self.acknowledged: dict[int, int] = {}
        self._world = world
        self._recorder = recorder
        self._network = network.attach(self)
        self._value = 0
        self._position = 0
        self._is_reading = False

    def start(self) -> None:
        self._send_next()
        self._read()

    def deliver(self, event: NetworkEvent) -> None:
        match event:
            case Received(_, Appended(value, offset)):
                if value == self._value and value not in self.acknowledged:
                    self._record("sender", OK, "send", sends=[Send(KEY, value, offset)])
                    self.acknowledged[value] = offset
                    self._world.after(_SEND_EVERY_US, "client sends", self._send_next)
            case Received(_, Values(offset, values)):
                if self._is_reading and offset == self._position:
                    self._is_reading = False
                    records = list(enumerate(values, start=offset))
                    self._record("reader", OK, "poll", polled=records)
                    self._position += len(values)

    def read_finally(self, values: Sequence[int]) -> None:
        self._record("last", INVOKE, "final")
        self._record("last", OK, "final", polled=list(enumerate(values)))

    def _send_next(self) -> None:
        self._value += 1
        self._record("sender", INVOKE, "send", sends=[Send(KEY, self._value)])
        self._send(self._value)

    def _send(self, value: int) -> None:
        if value == self._value and value not in self.acknowledged:
            self._network.send(LEADER, Append(value))
            self._world.after(_RETRY_US, "client retries", self._send, value)

    def _read(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._record("reader", INVOKE, "poll")
        self._network.send(LEADER, Read(self._position))
        self._world.after(_RETRY_US, "client reads", self._read)

    def _record(
        self,
        process: str,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Sequence[tuple[int, int]] = (),
    ) -> None:
        op = Op(self._world.now * 1000, process, type, f, sends=sends)
        self._recorder.record(op, [{KEY: polled}] if f != "send" and type == OK else ())


class ToyCluster:
    """See the module; implements `Cluster`."""

    is_careless = False
    families = tuple(
        FAMILIES[fault_id]
        for fault_id in (
            "F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "F09", "F10", "F11", "F14",
            "F15", "F16", "F17", "F18", "F19", "F20", "F21", "F22", "F23", "F24", "F26", "F27",
            "F33", "F34", "F42", "F43", "F47", "F49",
        )
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self.network = Network(world)
        self.store = SimulatedStore(world, self.network)
        self.recorder = Recorder()
        self.client = ToyClient(world, self.network, self.recorder)
        self.machines = {
            LEADER: Machine(world, LEADER, self.network, self.store, self._new_leader),
            **{
                name: Machine(world, name, self.network, self.store, ToyFollower)
                for name in FOLLOWERS
            },
        }
        self._world = world
        self._acknowledged_before = 0

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        self.client.start()

    @property
    def clients(self) -> list[str]:
        return []

    @property
    def administered(self) -> None:
        return None

    def role(self, role: str) -> list[str]:
        return list(FOLLOWERS) if role == "follower" else [LEADER]

    def check(self) -> None:
        pass  # The followers check what they copy.

    def begin_quiet(self) -> None:
        self._acknowledged_before = len(self.client.acknowledged)
        self._record_window("open")

    def end_quiet(self) -> None:
        self._record_window("close")
        if len(self.client.acknowledged) < self._acknowledged_before + 10:
            raise Violation("the leader does not acknowledge, though all is quiet")
        leader = self.machines[LEADER]
        count = len(read_values(leader)) - 2
        for name in FOLLOWERS:
            follower = self.machines[name].node
            if not isinstance(follower, ToyFollower) or len(follower.values) < count:
                raise Violation(f"{name} does not follow, though all is quiet")

    def finish(self) -> Mapping[str, float]:
        self.client.read_finally(read_values(self.machines[LEADER]))
        report = check(self.recorder.ops, expectations=Expectations())
        if not report.is_good:
            raise Violation(f"{', '.join(report.failures)}\n{report.text()}")
        return report.measures

    def _record_window(self, what: str) -> None:
        self.recorder.record(Op(self._world.now * 1000, "swarm", INFO, "window", details=what))

    def _new_leader(self) -> ToyLeader:
        return ToyLeader(is_careless=self.is_careless)


class CarelessCluster(ToyCluster):
    """One that loses what it acknowledged when the power goes."""

    is_careless = True


def write_whole(file: File, data: bytes) -> None:
    if file.append([data]) != len(data):
        raise OSError(errno.ENOSPC, "short write")


def entry_of(value: int) -> bytes:
    return _ENTRY.pack(value, zlib.crc32(value.to_bytes(8, "little")))


def read_values(machine: Machine) -> list[int]:
    """Return the values of the file, up to the first that is damaged."""
    if not machine.disk.exists(PATH):
        return []
    values = []
    data = machine.disk.contents(PATH)
    for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        value, _ = _ENTRY.unpack_from(data, at)
        if data[at : at + _ENTRY.size] != entry_of(value):
            break
        values.append(value)
    return values


def recover(machine: Machine) -> list[int]:
    """Write what is there anew, and flush it."""
    values = read_values(machine)
    try:
        file = machine.disk.open(PATH + ".new", create=True)
        file.truncate(0)
        write_whole(file, b"".join(map(entry_of, values)))
        file.fdatasync()
        machine.disk.rename(PATH + ".new", PATH)
        machine.disk.fsync_directory("/")
    except OSError as error:
        machine.exit(f"the disk failed: {error}")
    return values
