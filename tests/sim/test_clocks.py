"""Machines' clocks: they drift, jump and never agree, and timers follow them."""

from tests.sim.clocks import MachineClock
from tests.sim.world import MINUTE, SECOND, World


def clock_of(world: World, name: str = "m") -> tuple[MachineClock, list[tuple[int, object]]]:
    heard: list[tuple[int, object]] = []
    return MachineClock(world, name), heard


def set_timer(
    world: World,
    clock: MachineClock,
    heard: list[tuple[int, object]],
    delay_us: int,
    token: object,
) -> None:
    clock.after(delay_us, lambda: heard.append((world.now, token)))


def test_clocks_begin_anywhere_and_run_alike() -> None:
    world = World(1)
    first, second = clock_of(world, "a")[0], clock_of(world, "b")[0]
    assert first.monotonic() != second.monotonic()
    assert abs(first.wall() - second.wall()) <= 2_000_000
    began = first.monotonic(), second.monotonic(), first.wall()
    world.run_until(MINUTE)
    assert abs(first.monotonic() - began[0] - 60_000_000) <= 1
    assert abs(second.monotonic() - began[1] - 60_000_000) <= 1
    assert abs(first.wall() - began[2] - 60_000_000) <= 1


def test_a_fast_clock_is_fast_from_then_on_and_its_timers_early() -> None:
    world = World(1)
    clock, heard = clock_of(world)
    set_timer(world, clock, heard, 10000_000, "ten")
    world.run_until(4 * SECOND)
    clock.set_rate(2.0)
    began = clock.monotonic()
    world.run_until(6 * SECOND)
    assert abs(clock.monotonic() - began - 4_000_000) <= 1
    clock.set_rate(0.5)
    world.run_until(20 * SECOND)
    [(at, token)] = heard
    assert token == "ten"
    assert 10 * SECOND <= at <= 10 * SECOND + 4  # 4 s, twice 2 s, and half of 4 s more.


def test_a_jump_makes_timers_due_and_never_goes_back() -> None:
    world = World(1)
    clock, heard = clock_of(world)
    set_timer(world, clock, heard, 60000_000, "minute")
    set_timer(world, clock, heard, 1_000, "soon")
    world.run_until(SECOND)
    before = clock.monotonic(), clock.wall()
    clock.jump(2 * MINUTE)
    assert (clock.monotonic(), clock.wall()) == (before[0] + 120_000_000, before[1] + 120_000_000)
    world.run_until(2 * SECOND)
    assert [token for _, token in heard] == ["soon", "minute"]


def test_the_time_of_day_jumps_alone() -> None:
    world = World(1)
    clock, heard = clock_of(world)
    before = clock.monotonic(), clock.wall()
    set_timer(world, clock, heard, 1000_000, "timer")
    clock.jump_wall(-60 * MINUTE)
    assert (clock.monotonic(), clock.wall()) == (before[0], before[1] - 3_600_000_000)
    world.run_until(2 * SECOND)
    assert len(heard) == 1


def test_timers_are_never_early_and_die_with_their_process() -> None:
    world = World(1)
    clock, heard = clock_of(world)
    clock.set_rate(1.7)
    began = clock.monotonic()
    for delay in (300, 100, 200, 100):
        set_timer(world, clock, heard, delay, delay)
    seen: list[int] = []
    while world.now < 400:
        world.run_until(world.now + 1)
        while len(seen) < len(heard):
            seen.append(clock.monotonic() - began)
    assert [token for _, token in heard] == [100, 100, 200, 300]
    assert seen == [100, 100, 200, 300]
    set_timer(world, clock, heard, 1_000, "never")
    clock.forget_timers()
    world.run_until(MINUTE)
    assert len(heard) == 4
