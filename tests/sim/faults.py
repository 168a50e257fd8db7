"""The families of faults, by their ids in docs/safety.md. A fault hits a running cluster, and ends.

A family is a function of a `Scene`. It returns a function that ends the fault, or None when there
was nothing to hit; only a hit counts. All its choices come from the scene's dice, which belong to
this fault alone: removing one fault from a run leaves the others unchanged.

Damage to stored bytes, and the loss of a disk, hit only one machine of each run, its *victim*: a
cluster in which every copy of a record is damaged can only report it.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tests.fakes.disk import SECTOR_BYTES
from tests.sim import coordination
from tests.sim.admin import TrimRecords
from tests.sim.byte_connections import ByteEnd
from tests.sim.coordination import SimulatedStore, StoreWeather
from tests.sim.disk import SimulatedDisk
from tests.sim.machine import BrokerMachine, ClientMachine
from tests.sim.network import Network, Weather
from tests.sim.world import MILLISECOND, MINUTE, SECOND, World

from millrace.broker.storage.scan import DAMAGE
from millrace.broker.storage.segment_swap import SUFFIX as SWAP
from millrace.broker.storage.tier import FILE_NAME as TIER
from millrace.core.ids import NO_BROKER, BrokerId, TopicId, TopicPartition, WallMs
from millrace.core.media import TopicMedia
from millrace.core.metadata.model import ClusterState, DeletedTopic, PartitionState, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    PurgeTopics,
    Reassignment,
    ReassignPartitions,
    Request,
    TopicChange,
    TopicRef,
    UndeleteTopics,
)
from millrace.core.records.batch import walk

_NO_TIME: Final = WallMs(0)
"""Brokers say when a topic was deleted."""
_TRIED_FOR_S: Final = 35
"""A client gives a request up after this time."""

Undo = Callable[[], None]
Inject = Callable[["Scene"], Undo | None]

_CUT: Final = Weather(is_cut=True)


class Administered(Protocol):
    """A cluster that operators change."""

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """Of all partitions, as stored."""

    @property
    def stored_topics(self) -> Mapping[TopicId, Topic]:
        """Likewise."""

    @property
    def stored_cluster(self) -> ClusterState | None:
        """Likewise."""

    @property
    def stored_deleted(self) -> Mapping[TopicId, DeletedTopic]:
        """Deleted topics that can be brought back, likewise."""

    def returnable(self) -> list[TopicId]:
        """Topics that a fault may delete, and must bring back."""

    def disposable(self) -> list[TopicId]:
        """Topics that a fault may delete; each is created again under its name."""

    def administer(self, request: Request | TrimRecords) -> None:
        """Send a request to the cluster; the answer is dropped."""


@dataclass(slots=True)
class Scene:
    """What a fault may touch.

    Attributes:
        world: where it happens.
        machines: of the brokers, by name.
        network: between them, and to the store.
        store: the coordination store.
        role: names of the machines that are now `leader`, `follower`, `controller` or
            `coordinator` of the consumer group.
        victim: the machine whose disk may be damaged.
        clients: the clients' machines by name, as they come.
        administered: the cluster as an operator can change it; None: not at all.
        dice: of this fault alone.
        duration_us: until it is ended.
    """

    world: World
    machines: Mapping[str, BrokerMachine]
    network: Network
    store: SimulatedStore
    role: Callable[[str], list[str]]
    victim: BrokerMachine
    clients: Mapping[str, ClientMachine]
    administered: Administered | None
    dice: random.Random
    duration_us: int

    def any_machine(self) -> BrokerMachine:
        return self.machines[self.dice.choice(list(self.machines))]

    def pick(self, role: str) -> BrokerMachine | None:
        """Choose a machine with a role."""
        names = self.role(role)
        return self.machines[self.dice.choice(names)] if names else None

    def others(self, machine: BrokerMachine) -> list[str]:
        return [name for name in self.machines if name != machine.name]

    def cut(self, here: list[str], there: list[str], *, both_ways: bool = True) -> Undo:
        """Cut the links from some machines to others."""
        pairs = [(a, b) for a in here for b in there if a != b]
        if both_ways:
            pairs += [(b, a) for a, b in pairs]
        return self.network.impose(dict.fromkeys(pairs), _CUT)


@dataclass(frozen=True, slots=True)
class Family:
    """One fault of docs/safety.md, as far as it can be simulated.

    Attributes:
        fault_id: for example `F02`.
        name: what happens, as a sentence.
        inject: the function that does it.
        duration_us: least and most; the fault draws a duration between them.
    """

    fault_id: str
    name: str
    inject: Inject
    duration_us: tuple[int, int]


FAMILIES: Final[dict[str, Family]] = {}

_LONG: Final = (2 * SECOND, 20 * SECOND)
_SHORT: Final = (100 * MILLISECOND, 3 * SECOND)


def family(
    fault_id: str, name: str, duration_us: tuple[int, int] = _LONG
) -> Callable[[Inject], Inject]:
    def register(inject: Inject) -> Inject:
        assert fault_id not in FAMILIES
        FAMILIES[fault_id] = Family(fault_id, name, inject, duration_us)
        return inject

    return register


# --- Processes and power ---------------------------------------------------------------------


def _kill(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None:
        return None
    machine.kill()
    return machine.start


def _cut_power(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None:
        return None
    machine.cut_power()
    return machine.start


def _freeze(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None or machine.is_frozen:
        return None
    machine.freeze()
    return machine.thaw


def all_of(undos: Sequence[Undo | None]) -> Undo:
    """Undo all that has gathered by then."""

    def undo_all() -> None:
        for undo in undos:
            if undo is not None:
                undo()

    return undo_all


def started(machines: Iterable[BrokerMachine]) -> Undo:
    """Start some machines."""
    return all_of([machine.start for machine in machines])


def _together(undos: Sequence[Undo | None]) -> Undo | None:
    return all_of(undos) if any(undos) else None


@family("F01", "a follower is killed")
def kill_follower(scene: Scene) -> Undo | None:
    return _kill(scene.pick("follower"))


@family("F02", "a leader is killed")
def kill_leader(scene: Scene) -> Undo | None:
    return _kill(scene.pick("leader"))


@family("F03", "all processes are killed", _SHORT)
def kill_all(scene: Scene) -> Undo | None:
    return _together([_kill(machine) for machine in scene.machines.values()])


@family("F04", "a machine loses power")
def cut_power(scene: Scene) -> Undo | None:
    return _cut_power(scene.any_machine())


@family("F05", "one machine stands still while another loses power, and the first goes on alone")
def pause_and_cut_power(scene: Scene) -> Undo | None:
    if len(scene.machines) < 3:
        return None
    first, second, third = scene.dice.sample(list(scene.machines.values()), 3)
    thaw_first = _freeze(first)
    steps: list[Undo | None] = [thaw_first]
    step = scene.duration_us // 3

    def cut_second() -> None:
        steps.append(_cut_power(second))
        steps.append(_freeze(third))
        if thaw_first is not None:
            thaw_first()

    event = scene.world.after(step, "F05 goes on", cut_second)

    return all_of([event.cancel, all_of(steps)])


@family("F06", "all machines lose power", _SHORT)
def cut_all_power(scene: Scene) -> Undo | None:
    return _together([_cut_power(machine) for machine in scene.machines.values()])


@family("F07", "the last replica in sync loses power")
def cut_power_of_the_last_in_sync(scene: Scene) -> Undo | None:
    leader = scene.pick("leader")
    if leader is None:
        return None
    heal = scene.cut([leader.name], scene.role("follower"))
    steps: list[Undo | None] = [heal]

    def cut_leader() -> None:
        steps.append(_cut_power(leader))
        heal()

    event = scene.world.after(scene.duration_us * 2 // 3, "F07 goes on", cut_leader)

    return all_of([event.cancel, all_of(steps)])


@family("F08", "a leader stands still", (SECOND, MINUTE))
def freeze_leader(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("leader"))


@family("F09", "a follower stands still", (SECOND, MINUTE))
def freeze_follower(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("follower"))


@family("F10", "a process stands still for a moment", _SHORT)
def stall_process(scene: Scene) -> Undo | None:
    return _freeze(scene.any_machine())


@family("F47", "a machine is restarted in order")
def restart_in_order(scene: Scene) -> Undo | None:
    return _terminate(scene, patience_us=scene.duration_us)


@family("F49", "a process that is told to leave is killed before it has left")
def restart_in_a_hurry(scene: Scene) -> Undo | None:
    return _terminate(scene, patience_us=scene.dice.randrange(100 * MILLISECOND))


def _terminate(scene: Scene, patience_us: int) -> Undo | None:
    machine = scene.any_machine()
    if machine.node is None or machine.is_terminating:
        return None
    machine.terminate()
    event = scene.world.after(patience_us, f"{machine.name} has to be gone", machine.kill)
    return all_of([event.cancel, machine.kill, machine.start])


def _cut_power_soon(scene: Scene, soon: Callable[[SimulatedDisk], None]) -> Undo | None:
    """Let the power of a machine go when its disk does what `soon` says."""
    machine = scene.any_machine()
    if machine.node is None:
        return None
    soon(machine.disk)

    def undo() -> None:
        machine.disk.cut_power_at = None
        machine.start()

    return undo


@family("F27", "power goes in the middle of a write", _SHORT)
def cut_power_in_a_write(scene: Scene) -> Undo | None:
    return _cut_power_soon(scene, lambda disk: disk.cut_power_soon(1 + scene.dice.randrange(20)))


def _cut_power_after_rename(scene: Scene, name: str, calls_max: int) -> Undo | None:
    return _cut_power_soon(
        scene,
        lambda disk: disk.cut_power_after_rename(name, 1 + scene.dice.randrange(calls_max)),
    )


@family("F69", "power goes while cleaned segments replace others")
def cut_power_in_a_replacement(scene: Scene) -> Undo | None:
    return _cut_power_after_rename(scene, SWAP, 12)


MOVE_CUT: Final = Family(
    "F75",
    "power goes while a segment moves to an HDD",
    partial(_cut_power_after_rename, name=f"/{TIER}", calls_max=6),
    _SHORT,
)
"""For tiered topics."""


@family("F38", "the controller is killed")
def kill_controller(scene: Scene) -> Undo | None:
    return _kill(scene.pick("controller"))


@family("F39", "the controller stands still for longer than its lease", (8 * SECOND, 30 * SECOND))
def freeze_controller(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("controller"))


# --- The network -----------------------------------------------------------------------------


@family("F11", "a leader is cut off from everybody")
def isolate_leader(scene: Scene) -> Undo | None:
    leader = scene.pick("leader")
    if leader is None:
        return None
    return scene.cut([leader.name], [*scene.others(leader), coordination.NAME])


@family("F12", "a leader is cut off from the other brokers but the controller")
def isolate_leader_from_followers(scene: Scene) -> Undo | None:
    leader = scene.pick("leader")
    if leader is None:
        return None
    controllers = scene.role("controller")
    there = [name for name in scene.others(leader) if name not in controllers]
    return scene.cut([leader.name], there) if there else None


@family("F13", "a leader is cut off from controller and store")
def isolate_leader_from_controller(scene: Scene) -> Undo | None:
    leader = scene.pick("leader")
    if leader is None:
        return None
    there = [name for name in scene.role("controller") if name != leader.name]
    return scene.cut([leader.name], [*there, coordination.NAME])


@family("F14", "a machine hears nobody, or nobody hears it")
def cut_one_way(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    here, there = [machine.name], [*scene.others(machine), coordination.NAME]
    if scene.dice.random() < 0.5:
        here, there = there, here
    return scene.cut(here, there, both_ways=False)


@family("F15", "two machines do not see each other, and all others do")
def cut_between_two(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    others = scene.others(machine)
    return scene.cut([machine.name], [scene.dice.choice(others)]) if others else None


@family("F16", "the network is slow and loses messages")
def bad_weather(scene: Scene) -> Undo | None:
    weather = Weather(
        delay_us=scene.dice.randrange(500, 200_000), loss=scene.dice.choice((0, 0.01, 0.1, 0.3))
    )
    names = [*scene.machines, coordination.NAME, *scene.clients]
    return scene.network.impose([(a, b) for a in names for b in names if a != b], weather)


@family("F17", "streams are reset", _SHORT)
def reset_streams(scene: Scene) -> Undo | None:
    share = scene.dice.choice((0.2, 1.0))
    if not scene.network.reset_streams(scene.dice, share, [scene.any_machine().name]):
        return None
    return lambda: None


def _byte_ends(scene: Scene) -> list[ByteEnd]:
    """Return one end of some connections of bytes of a machine."""
    share = scene.dice.choice((0.3, 1.0))
    ends = scene.network.ends_of([scene.any_machine().name])
    return [end for end in ends if isinstance(end, ByteEnd) and scene.dice.random() < share]


def _either(scene: Scene, end: ByteEnd) -> ByteEnd:
    return end if scene.dice.random() < 0.5 else end.peer


@family("F80", "connections break inside a frame", _SHORT)
def cut_in_a_frame(scene: Scene) -> Undo | None:
    ends = [_either(scene, end) for end in _byte_ends(scene)]
    for end in ends:
        end.cut_after(scene.dice.choice((0, 1, 5, 100, 1_000)) + scene.dice.randrange(100))

    def undo() -> None:
        for end in ends:
            end.cut_after(-1)

    return undo if ends else None


@family("F81", "bytes arrive late, in small pieces")
def slow_pieces(scene: Scene) -> Undo | None:
    ends = [_either(scene, end) for end in _byte_ends(scene)]
    for end in ends:
        late_us = scene.dice.choice((1, 20, 300)) * MILLISECOND
        end.slow_down(scene.dice.choice((20, 100, 1_000)), late_us)

    def undo() -> None:
        for end in ends:
            end.slow_down(1 << 30, 0)

    return undo if ends else None


@family("F82", "one end of connections is gone, and the other one does not hear of it", _SHORT)
def half_open(scene: Scene) -> Undo | None:
    ends = [_either(scene, end) for end in _byte_ends(scene)]
    for end in ends:
        end.vanish()
    return (lambda: None) if ends else None


@family("F18", "requests are overtaken, and some arrive half a minute late")
def delay_requests(scene: Scene) -> Undo | None:
    weather = Weather(
        delay_us=scene.dice.randrange(1_000, 50_000), lateness=scene.dice.choice((0.001, 0.01))
    )
    return scene.network.impose(
        [(a, b) for a in scene.machines for b in scene.machines if a != b], weather
    )


@family("F34", "a follower's network is slow")
def slow_follower(scene: Scene) -> Undo | None:
    follower = scene.pick("follower")
    if follower is None:
        return None
    weather = Weather(delay_us=scene.dice.randrange(20_000, 400_000))
    pairs = [(name, follower.name) for name in scene.others(follower)]
    return scene.network.impose(pairs + [(b, a) for a, b in pairs], weather)


# --- Clocks ----------------------------------------------------------------------------------


@family("F19", "the time of day jumps")
def jump_wall_clock(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    if machine.clock.jumped_us:
        return None  # Two jumps may exceed `message.timestamp.after.max.ms`, an hour.
    by = scene.dice.randrange(-60 * MINUTE, 60 * MINUTE)
    machine.clock.jump_wall(by)
    return lambda: machine.clock.jump_wall(-by)


@family("F20", "a clock runs too fast or too slow")
def change_clock_rate(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.clock.set_rate(scene.dice.uniform(0.5, 2.0))
    return lambda: machine.clock.set_rate(1.0)


@family("F21", "a machine sleeps, and wakes much later by its clocks", _SHORT)
def sleep_machine(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.clock.jump(scene.dice.randrange(SECOND, 10 * MINUTE))
    return lambda: None


# --- Disks -----------------------------------------------------------------------------------


def _with_room_again(machine: BrokerMachine) -> Undo:
    def undo() -> None:
        machine.disk.capacity = None

    return undo


@family("F22", "a disk is full")
def fill_disk(scene: Scene) -> Undo | None:
    machine = scene.pick("leader") or scene.any_machine()
    machine.disk.fill(0)
    return _with_room_again(machine)


@family("F23", "a disk becomes full in the middle of a write")
def nearly_fill_disk(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.fill(scene.dice.randrange(1, 2_000))
    return _with_room_again(machine)


@family("F24", "a flush fails", _SHORT)
def fail_flush(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    if machine.node is None:
        return None
    machine.disk.fail_next_flush()

    def undo() -> None:
        machine.disk.fail_flush_at = None
        if scene.dice.random() < 0.5:
            machine.disk.evict_all()
        machine.start()

    return undo


@family("F25", "reads fail", _SHORT)
def fail_reads(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.reads_to_fail = 1 + scene.dice.randrange(3)

    def undo() -> None:
        machine.disk.reads_to_fail = 0

    return undo


@family("F26", "a volume becomes read-only")
def make_read_only(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.is_read_only = True

    def undo() -> None:
        machine.disk.is_read_only = False
        machine.start()

    return undo


def _active(machine: BrokerMachine) -> list[str]:
    """The last segment of each partition."""
    last = {path.rpartition("/")[0]: path for path in _segments(machine)}
    return list(last.values())  # Ascending, so that the last one stays.


def _files(machine: BrokerMachine) -> list[str]:
    """The files that its broker uses, without those that were set aside."""
    return [path for path in machine.disk.files() if ".damaged/" not in path]


def _segments(machine: BrokerMachine) -> list[str]:
    return [path for path in _files(machine) if path.endswith(".log")]


def _trusted_bytes(machine: BrokerMachine, path: str) -> int:
    """How much of a segment recovery trusts, so that it recognizes damage in it.

    Damage beyond the recovery point looks like a torn tail, and recovery truncates it. The product
    promises nothing for a replica that is damaged there and also crashes.
    """
    if path not in _active(machine):
        return machine.disk.size(path)
    logs = {} if machine.node is None else machine.node.logs
    name = path.split("/")[-2]
    log = next((log for key, log in logs.items() if str(key) == name), None)
    if log is None:
        return 0
    trusted = 0
    with suppress(*DAMAGE):  # For example where a fault has damaged it before.
        for header, batch in walk(machine.disk.contents(path)):
            if header.next_offset > log.state.recovery_point:
                break
            trusted += len(batch)
    return trusted


def _flip(scene: Scene, sizes: Mapping[str, int]) -> Undo | None:
    """Flip a bit in the first bytes of a file, as many as are given for each."""
    disk = scene.victim.disk
    found = [path for path, size in sizes.items() if size]
    if not found:
        return None
    path = scene.dice.choice(found)
    disk.damaged.append(path)
    disk.flip_bit(path, scene.dice.randrange(sizes[path]), scene.dice.randrange(8))
    scene.world.note(f"a bit of {path} of {scene.victim.name} flips")
    return lambda: None


@family("F28", "a bit flips in a closed segment", _SHORT)
def flip_in_closed_segment(scene: Scene) -> Undo | None:
    active = _active(scene.victim)
    closed = [path for path in _segments(scene.victim) if path not in active]
    return _flip(scene, {path: scene.victim.disk.size(path) for path in closed})


@family("F29", "a bit flips in an active segment", _SHORT)
def flip_in_active_segment(scene: Scene) -> Undo | None:
    active = _active(scene.victim)
    return _flip(scene, {path: _trusted_bytes(scene.victim, path) for path in active})


@family("F30", "a bit flips in a file that is no segment", _SHORT)
def flip_elsewhere(scene: Scene) -> Undo | None:
    files = [path for path in _files(scene.victim) if not path.endswith(".log")]
    return _flip(scene, {path: scene.victim.disk.size(path) for path in files})


_CHECKPOINT: Final = "recovery-checkpoint"
"""The checkpoint and the leader epochs show that a log's first segment is missing; so a fault does
not remove all of them."""


def _sizes_known(machine: BrokerMachine) -> dict[str, int]:
    """Files whose loss or truncation a broker may notice, and their sizes."""
    if any(path.endswith(_CHECKPOINT) for path in machine.disk.damaged):
        return {}
    sizes = {
        path: _trusted_bytes(machine, path) if path.endswith(".log") else machine.disk.size(path)
        for path in _files(machine)
    }
    return {path: size for path, size in sizes.items() if size}


@family("F31", "a file is cut short or gone when its machine comes back")
def lose_file(scene: Scene) -> Undo | None:
    disk = scene.victim.disk
    sizes = {} if disk.is_read_only else _sizes_known(scene.victim)
    undo = _kill(scene.victim) if sizes else None
    if undo is None:
        return None
    path = scene.dice.choice(list(sizes))
    if disk.is_damaged and path.endswith(_CHECKPOINT):
        path = next(path for path in sizes if not path.endswith(_CHECKPOINT))
    disk.damaged.append(path)
    scene.world.note(f"{path} of {scene.victim.name} is damaged")
    if scene.dice.random() < 0.5:
        disk.write(path, disk.contents(path)[: scene.dice.randrange(sizes[path])])
    else:
        disk.unlink(path)
        disk.fsync_directory(path.rpartition("/")[0] or "/")
    return undo


@family("F32", "a write goes to the wrong place")
def misdirect_write(scene: Scene) -> Undo | None:
    disk = scene.victim.disk
    # Only whole ones: a batch that begins after the trusted part would look like a torn tail.
    sectors = {
        path: size // SECTOR_BYTES
        for path, size in _sizes_known(scene.victim).items()
        if path.endswith(".log") and size >= SECTOR_BYTES
    }
    undo = _kill(scene.victim) if len(sectors) > 1 else None
    if undo is None:
        return None
    source, target = scene.dice.sample(list(sectors), 2)
    at = scene.dice.randrange(sectors[target]) * SECTOR_BYTES
    disk.damaged.append(target)
    scene.world.note(f"{target} of {scene.victim.name} gets bytes of {source}")
    disk.copy_sector(source, 0, target, at)
    return undo


@family("F33", "a disk is slow")
def slow_disk(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.times.stall_us = scene.dice.choice((20_000, 200_000, 2_000_000))

    def undo() -> None:
        machine.disk.times.stall_us = 0

    return undo


@family("F36", "a machine comes back with an empty disk")
def replace_disk(scene: Scene) -> Undo | None:
    if scene.victim.node is None:
        return None
    scene.victim.cut_power()
    scene.victim.disk.wipe()
    return scene.victim.start


# --- Operators -------------------------------------------------------------------------------


@family("F48", "a broker is drained, and taken back")
def drain_broker(scene: Scene) -> Undo | None:
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return None
    return drained(scene, scene.dice.choice(sorted(administered.stored_cluster.brokers)))


def drained(scene: Scene, broker_id: BrokerId) -> Undo:
    """Drain a broker."""
    administered = scene.administered
    assert administered is not None
    administered.administer(DrainBroker(broker_id=broker_id))
    return lambda: _until_done(
        scene,
        lambda: DrainBroker(broker_id=broker_id, is_drained=False),
        lambda cluster: cluster.brokers[broker_id].is_drained,
        looks=_TRIED_FOR_S,  # The drain may be late.
    )


def _until_done(
    scene: Scene,
    request: Callable[[], Request | None],
    is_needed: Callable[[ClusterState], bool],
    looks: int = 1,
    found: int = 0,
) -> None:
    """Repeat a request until it is done. The controller may be absent; None: it is too early.

    Args:
        looks: how many looks in turn, a second apart, must find it done: the fault's own request
            may still be in flight.
        found: how many looks in turn have found it done.
    """
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return
    found += 1
    if is_needed(administered.stored_cluster):
        found = 0
        wanted = request()
        if wanted is not None:
            administered.administer(wanted)
    if found < looks:
        again = (scene, request, is_needed, looks, found)
        scene.world.after(SECOND, "operator asks again", _until_done, *again)


def _any_partition(scene: Scene) -> tuple[TopicPartition, PartitionState] | None:
    if scene.administered is None or not scene.administered.states:
        return None
    topic_partition = scene.dice.choice(sorted(scene.administered.states))
    return topic_partition, scene.administered.states[topic_partition]


def move(
    topic_partition: TopicPartition, replicas: tuple[BrokerId, ...] | None
) -> ReassignPartitions:
    """Return the request that a partition gets these replicas; None: that it stays as it was."""
    return ReassignPartitions(
        reassignments=[
            Reassignment(
                topic_id=topic_partition.topic_id,
                partition=topic_partition.partition,
                replicas=replicas,
            )
        ]
    )


@family("F71", "replicas are moved, and perhaps soon moved back", (100 * MILLISECOND, 8 * SECOND))
def move_replicas(scene: Scene) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None or administered.stored_cluster is None:
        return None
    topic_partition, state = found
    brokers = sorted(administered.stored_cluster.brokers)
    count = len(state.target) - (len(state.target) > 2 and scene.dice.random() < 0.3)
    moves_back = count < len(state.target) or scene.dice.random() < 0.5
    goal = tuple(scene.dice.sample(brokers, count))

    def undo() -> None:
        now = administered.states.get(topic_partition)
        if moves_back and now is not None:
            if now.adding:
                administered.administer(move(topic_partition, None))
            administered.administer(move(topic_partition, state.target))

    administered.administer(move(topic_partition, goal))
    return undo


@family("F70", "a topic is deleted while a broker is away, and made again under its name")
def delete_topic(scene: Scene) -> Undo | None:
    administered = scene.administered
    topic_ids = [] if administered is None else administered.disposable()
    if not topic_ids or administered is None:
        return None
    topic_id = scene.dice.choice(topic_ids)
    undo = _kill(scene.any_machine())
    _until_done(
        scene,
        lambda: DeleteTopics(topics=[TopicRef(topic_id=topic_id)], deleted_at=_NO_TIME),
        lambda _: topic_id in administered.stored_topics,
    )
    # Once it is made again, its files are to go.
    _until_done(
        scene,
        lambda: PurgeTopics(topics=[TopicRef(topic_id=topic_id)]),
        lambda _: topic_id in (*administered.stored_topics, *administered.stored_deleted),
    )
    return undo or (lambda: None)


@family("F74", "a topic is deleted and brought back, and brokers die meanwhile")
def undelete_topic(scene: Scene) -> Undo | None:
    administered = scene.administered
    topic_ids = [] if administered is None else administered.returnable()
    if not topic_ids or administered is None:
        return None
    topic_id = scene.dice.choice(topic_ids)
    ref = TopicRef(topic_id=topic_id)
    administered.administer(DeleteTopics(topics=[ref], deleted_at=_NO_TIME))
    dying = scene.dice.sample(list(scene.machines.values()), scene.dice.randint(0, 2))
    undos: list[Undo] = []

    def die(machine: BrokerMachine) -> None:
        undo = _cut_power(machine) if scene.dice.random() < 0.5 else _kill(machine)
        if undo is not None:
            undos.append(undo)

    for machine in dying:
        scene.world.after(scene.dice.randrange(1, SECOND), "a broker dies", die, machine)
        if scene.dice.random() < 0.7:  # Else it is away when the topic comes back.
            scene.world.after(scene.duration_us // 3, "it is back", machine.start)

    def undo_all() -> None:
        for undo in undos:
            undo()
        _until_done(
            scene,
            lambda: UndeleteTopics(topics=[ref]),
            lambda _: topic_id in administered.stored_deleted,
            looks=_TRIED_FOR_S,  # The deletion may be late.
        )

    return undo_all


@family("F72", "the settings of a topic are changed, and changed back")
def change_settings(scene: Scene) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None:
        return None
    topic_id = found[0].topic_id
    kept = administered.stored_topics[topic_id].overrides
    name, default, value = scene.dice.choice(
        (
            ("min.insync.replicas", "2", scene.dice.choice("123")),
            ("unclean.leader.election.enable", "false", "true"),
            ("durability", "fsync", "replicated"),
        )
    )
    before = kept.get(name, default)

    def change(value: str) -> Request:
        ref = TopicRef(topic_id=topic_id)
        return AlterTopics(changes=[TopicChange(topic=ref, set_config={name: value})])

    def is_needed(_: ClusterState) -> bool:
        topic = administered.stored_topics.get(topic_id)
        return topic is not None and topic.overrides.get(name, default) != before

    def ask() -> Request | None:
        # A replica that was cut off before the topic became durable may lack more than the rules
        # for flushed logs allow.
        states = [at for key, at in administered.states.items() if key.topic_id == topic_id]
        are_in_sync = all(len(state.isr) == len(state.replicas) for state in states)
        return change(before) if are_in_sync or name != "durability" else None

    administered.administer(change(value))
    return lambda: _until_done(scene, ask, is_needed, looks=_TRIED_FOR_S)


def _change_media(scene: Scene, one: TopicMedia, other: TopicMedia) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None:
        return None
    topic_id = found[0].topic_id
    media = other if administered.stored_topics[topic_id].config.media is one else one
    change = TopicChange(topic=TopicRef(topic_id=topic_id), set_config={"media": media.value})
    administered.administer(AlterTopics(changes=[change]))
    return lambda: None


MEDIA_CHANGE: Final = Family(
    "F72",
    "a topic asks for the other media",
    partial(_change_media, one=TopicMedia.HDD, other=TopicMedia.SSD),
    _SHORT,
)
"""For brokers with log directories on both."""
TIER_CHANGE: Final = Family(
    "F72",
    "a topic is tiered, or no more",
    partial(_change_media, one=TopicMedia.TIERED, other=TopicMedia.SSD),
    _SHORT,
)
"""Likewise."""


@family("F73", "an operator elects whoever is there where nobody leads", _SHORT)
def elect_uncleanly(scene: Scene) -> Undo | None:
    administered = scene.administered
    leaderless = [
        topic_partition
        for topic_partition, state in ({} if administered is None else administered.states).items()
        if state.leader == NO_BROKER
    ]
    if not leaderless or administered is None:
        return None
    administered.administer(ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=leaderless))
    return lambda: None


# --- The coordination store ------------------------------------------------------------------


def _store_weather(scene: Scene, weather: StoreWeather) -> Undo:
    scene.store.weather = weather

    def undo() -> None:
        if scene.store.weather is weather:
            scene.store.weather = StoreWeather()

    return undo


@family("F40", "the lease is stolen or deleted", _SHORT)
def steal_lease(scene: Scene) -> Undo | None:
    if scene.store.lease is None:
        return None
    if scene.dice.random() < 0.5:
        scene.store.delete_lease()
    else:
        scene.store.steal_lease("somebody")
    return lambda: None


@family("F41", "an object of the store is deleted, and restored")
def delete_object(scene: Scene) -> Undo | None:
    keys = sorted(scene.store.objects)
    if not keys:
        return None
    key = scene.dice.choice(keys)
    scene.store.delete(key)
    return scene.store.mend


@family("F42", "the store is out", (SECOND, 5 * MINUTE))
def store_outage(scene: Scene) -> Undo | None:
    return _store_weather(scene, StoreWeather(is_out=True))


@family("F43", "the store throttles, is slow, does writes late or twice, and loses answers")
def store_storm(scene: Scene) -> Undo | None:
    dice = scene.dice
    return _store_weather(
        scene,
        StoreWeather(
            service_us=dice.choice((500, 20_000, 100_000)),
            refusals=dice.choice((0, 0.1, 0.5)),
            lost_answers=dice.choice((0, 0.1, 0.3)),
            late_calls=dice.choice((0, 0.1)),
            repeated_calls=dice.choice((0, 0.1)),
            false_conflicts=dice.choice((0, 0.1, 0.5)),
        ),
    )


@family("F45", "the store is restored from an old backup, and then from the newest")
def restore_store(scene: Scene) -> Undo | None:
    if scene.store.revision < 2:
        return None
    scene.store.restore(scene.dice.randrange(1, scene.store.revision))
    return scene.store.mend
