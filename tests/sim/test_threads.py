"""Simulated threads wait in virtual time, for queues, events, locks and each other."""

import queue
from collections.abc import Callable

import pytest
from tests.sim.machines.clocks import MachineClock
from tests.sim.machines.threads import (
    SimulatedEvent,
    SimulatedLock,
    SimulatedQueue,
    SimulatedThread,
)
from tests.sim.world import SECOND, World


def start(world: World, run: Callable[[], None], name: str = "t") -> SimulatedThread:
    return SimulatedThread(world, name, run, lambda step: step(), MachineClock(world, name).after)


def test_a_thread_gets_what_is_put_into_its_queue_and_time_goes_on_meanwhile() -> None:
    world, came = World(1), SimulatedQueue()
    got: list[tuple[object, object, int]] = []
    thread = start(world, lambda: got.append((came.get(), came.get(), world.now)))
    world.at(SECOND, "first", came.put, 1)
    world.at(3 * SECOND, "second", came.put, 2)
    world.run_until(10 * SECOND)
    ((first, second, when),) = got
    assert (first, second, thread.is_over) == (1, 2, True)
    assert 3 * SECOND < when < 3 * SECOND + 1000


def test_a_queue_that_stays_empty_is_given_up_in_time() -> None:
    world, came = World(1), SimulatedQueue()
    ended: list[int] = []

    def run() -> None:
        with pytest.raises(queue.Empty):
            came.get(timeout=2.0)
        ended.append(world.now)

    start(world, run)
    world.run_until(SECOND)
    assert ended == []
    world.run_until(3 * SECOND)
    assert len(ended) == 1


def test_a_lock_has_one_holder_and_an_event_loop_lets_that_one_go_on() -> None:
    world, lock = World(1), SimulatedLock()
    order: list[str] = []

    def run(name: str) -> None:
        with lock:
            order.append(f"{name} in")
            current = SimulatedThread.current
            assert current is not None
            current.sleep(SECOND)
            order.append(f"{name} out")

    start(world, lambda: run("a"), "a")
    start(world, lambda: run("b"), "b")
    world.run_until(SECOND // 2)
    assert len(order) == 1
    with lock:  # An event loop takes it: the holder finishes first, and virtual time stands still.
        assert len(order) == 2
        assert world.now == SECOND // 2
    world.run_until(10 * SECOND)
    assert [step[0] for step in order] in (list("aabb"), list("bbaa"))


def test_an_event_wakes_all_that_wait_for_it() -> None:
    world, event = World(1), SimulatedEvent()
    woken: list[bool] = []
    for name in "abc":
        start(world, lambda: woken.append(event.wait(timeout=60)), name)
    world.at(SECOND, "set", event.set)
    world.run_until(2 * SECOND)
    assert woken == [True] * 3


def test_who_is_joined_runs_to_its_end_at_once() -> None:
    world = World(1)

    def run() -> None:
        assert SimulatedThread.current is not None
        SimulatedThread.current.sleep(SECOND)

    thread = start(world, run)
    thread.join()
    assert thread.is_over
    assert world.now == 0
