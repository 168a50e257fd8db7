"""Machines' clocks: they drift, jump and never agree, and timers follow them."""

from functools import partial

from tests.sim.machines.clocks import MachineClock
from tests.sim.world import MINUTE, SECOND, World


def test_clocks_begin_anywhere_and_run_alike() -> None:
    world = World(1)
    first, second = MachineClock(world, "a"), MachineClock(world, "b")
    assert first.monotonic() != second.monotonic()
    assert abs(first.wall() - second.wall()) <= 2_000_000
    began = first.monotonic(), second.monotonic(), first.wall()
    world.run_until(MINUTE)
    assert abs(first.monotonic() - began[0] - 60_000_000) <= 1
    assert abs(second.monotonic() - began[1] - 60_000_000) <= 1
    assert abs(first.wall() - began[2] - 60_000_000) <= 1


def test_a_fast_clock_is_fast_from_then_on_and_its_timers_early() -> None:
    world = World(1)
    clock = MachineClock(world, "m")
    heard: list[int] = []
    clock.after(10_000_000, lambda: heard.append(world.now))
    world.run_until(4 * SECOND)
    clock.set_rate(2.0)
    began = clock.monotonic()
    world.run_until(6 * SECOND)
    assert abs(clock.monotonic() - began - 4_000_000) <= 1
    clock.set_rate(0.5)
    world.run_until(20 * SECOND)
    [at] = heard
    assert 10 * SECOND <= at <= 10 * SECOND + 4  # 4 s, twice 2 s, and half of 4 s more.


def test_a_jump_makes_timers_due_and_never_goes_back() -> None:
    world = World(1)
    clock = MachineClock(world, "m")
    heard: list[str] = []
    clock.after(60_000_000, lambda: heard.append("minute"))
    clock.after(1_000, lambda: heard.append("soon"))
    world.run_until(SECOND)
    before = clock.monotonic(), clock.wall()
    clock.jump(2 * MINUTE)
    assert (clock.monotonic(), clock.wall()) == (before[0] + 120_000_000, before[1] + 120_000_000)
    world.run_until(2 * SECOND)
    assert heard == ["soon", "minute"]


def test_the_time_of_day_jumps_alone() -> None:
    world = World(1)
    clock = MachineClock(world, "m")
    before = clock.monotonic(), clock.wall()
    heard: list[int] = []
    clock.after(1_000_000, lambda: heard.append(world.now))
    clock.jump_wall(-60 * MINUTE)
    assert (clock.monotonic(), clock.wall()) == (before[0], before[1] - 3_600_000_000)
    world.run_until(2 * SECOND)
    assert len(heard) == 1


def test_timers_are_never_early_and_die_with_their_process() -> None:
    world = World(1)
    clock = MachineClock(world, "m")
    heard: list[int] = []
    clock.set_rate(1.7)
    began = clock.monotonic()
    for delay in (300, 100, 200, 100):
        clock.after(delay, partial(heard.append, delay))
    seen: list[int] = []
    while world.now < 400:
        world.run_until(world.now + 1)
        while len(seen) < len(heard):
            seen.append(clock.monotonic() - began)
    assert heard == [100, 100, 200, 300]
    assert seen == [100, 100, 200, 300]
    clock.after(1_000, lambda: heard.append(0))
    clock.forget_timers()
    world.run_until(MINUTE)
    assert len(heard) == 4
