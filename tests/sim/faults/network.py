"""Links are cut, slow, or lose messages; connections break."""

from typing import Final

from tests.sim.faults.family import SHORT, Families, Scene, Undo
from tests.sim.machines import coordination
from tests.sim.machines.byte_connections import ByteEnd
from tests.sim.machines.network import Weather
from tests.sim.world import MILLISECOND

FAMILIES: Final = Families()
family = FAMILIES.add


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


@family("F17", "streams are reset", SHORT)
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


@family("F80", "connections break inside a frame", SHORT)
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


@family("F82", "one end of connections is gone, and the other one does not hear of it", SHORT)
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
