"""The simulated coordination store: its promises, and what its callers do not learn."""

from collections.abc import Callable
from functools import partial

import pytest
from tests.sim.machines.coordination import (
    NAME,
    Answered,
    SimulatedStore,
    StoreHandle,
    StoreWeather,
)
from tests.sim.machines.network import Network, Weather
from tests.sim.world import SECOND, Violation, World

from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.core.controller.lease import NOBODY, LeaseRecord
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.objects.stored_object import StoredObject


class Caller:
    """One machine's view; `ask` makes a call and lets time pass until it is answered."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.store = SimulatedStore(self.world, self.network)
        self.handle = StoreHandle(self.store, "a")

    def ask(self, call: Callable[[Answered], None]) -> object:
        answers: list[object] = []
        call(answers.append)
        self.world.run_until(self.world.now + 3 * SECOND)
        assert len(answers) == 1
        return answers[0]

    def write(self, key: str, version: int, epoch: int = 1, value: bytes = b"x") -> object:
        new = StoredObject(value, version, ControllerEpoch(epoch))
        return self.ask(self.swap(key, new))

    def swap(self, key: str, new: StoredObject, name: str = "a") -> Callable[[Answered], None]:
        """Return a call that writes an object."""
        method = partial(self.store.swap, key, new, name)
        return partial(StoreHandle(self.store, name).call, method=method, refusal=False)

    def swap_lease(self, new: LeaseRecord) -> object:
        method = partial(self.store.swap_lease, new)
        return self.ask(partial(self.handle.call, method=method, refusal=False))

    def read_lease(self, answered: Answered) -> None:
        self.handle.call(answered, lambda: self.store.lease)

    def lease(self, version: int, holder: str = "a") -> LeaseRecord:
        return LeaseRecord(holder=holder, address="", duration_ms=1500, version=version)


def test_objects_are_swapped_by_version_and_controller_epoch() -> None:
    caller = Caller()
    assert caller.write("k", 1, epoch=2) is True
    assert caller.write("k", 1, epoch=2) is False
    assert caller.write("k", 3, epoch=2) is False
    assert caller.write("k", 2, epoch=1) is False
    assert caller.write("k", 2, epoch=2, value=b"new") is True
    assert caller.store.objects["k"] == StoredObject(b"new", 2, ControllerEpoch(2))
    assert [(w.key, w.stored.version) for w in caller.store.writes] == [("k", 1), ("k", 2)]


def test_the_lease_is_swapped_by_version_stolen_and_deleted() -> None:
    caller = Caller()
    first = caller.lease(1)
    assert caller.swap_lease(first) is True
    assert caller.swap_lease(first) is False
    caller.store.steal_lease("thief")
    stolen = caller.ask(caller.read_lease)
    assert stolen == caller.lease(2, "thief")
    caller.store.steal_lease()
    assert caller.store.lease is not None
    assert caller.store.lease.holder == NOBODY
    caller.store.delete_lease()
    assert caller.ask(caller.read_lease) is None
    assert caller.swap_lease(first) is True


def test_an_answer_that_is_lost_leaves_the_write_done() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(lost_answers=1.0)
    assert isinstance(caller.write("k", 1), CoordinationUnavailableError)
    assert caller.store.objects["k"].version == 1


def test_a_throttled_call_is_not_done() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(refusals=1.0)
    assert isinstance(caller.write("k", 1), CoordinationUnavailableError)
    assert caller.store.objects == {}


def test_a_late_call_is_done_after_its_caller_gave_up() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(late_calls=1.0)
    seen: list[tuple[int, object]] = []
    new = StoredObject(b"late", 1, ControllerEpoch(1))
    write = caller.swap("k", new)
    write(lambda answer: seen.append((len(caller.store.objects), answer)))
    caller.world.run_until(10 * SECOND)
    [(stored, answer)] = seen
    assert stored == 0
    assert isinstance(answer, CoordinationUnavailableError)
    assert caller.store.objects == {"k": new}


def test_a_write_that_is_sent_twice_is_done_and_refused() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(repeated_calls=1.0)
    assert caller.write("k", 1) is False
    assert caller.store.objects["k"].version == 1


def test_a_conflict_may_be_false() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(false_conflicts=1.0)
    assert caller.write("k", 1) is False
    assert caller.swap_lease(caller.lease(1)) is False
    assert caller.store.objects == {}


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_outage_or_a_cut_is_an_unknown_answer_in_time(is_cut: bool) -> None:
    caller = Caller()
    if is_cut:
        caller.network.impose([("a", NAME)], Weather(is_cut=True))
    else:
        caller.store.weather = StoreWeather(is_out=True)
    began = caller.world.now
    answers: list[tuple[int, object]] = []
    caller.read_lease(lambda answer: answers.append((caller.world.now, answer)))
    caller.world.run_until(10 * SECOND)
    [(at, answer)] = answers
    assert at - began == caller.store.timeout_us
    assert isinstance(answer, CoordinationUnavailableError)


def test_calls_are_done_one_after_another() -> None:
    caller = Caller()
    caller.store.weather = StoreWeather(service_us=100_000)
    times: list[int] = []
    for _ in range(5):
        caller.read_lease(lambda _: times.append(caller.world.now))
    caller.world.run_until(SECOND)
    assert len(times) == 5
    assert max(times) > 480_000


def test_a_restored_store_is_as_it_was_and_goes_on_from_there() -> None:
    caller = Caller()
    caller.write("k", 1)
    caller.write("other", 1)
    caller.write("k", 2)
    caller.store.delete("other")
    assert caller.store.revision == 4
    caller.store.restore(2)
    assert caller.store.revision == 2
    assert {key: found.version for key, found in caller.store.objects.items()} == {
        "k": 1,
        "other": 1,
    }
    assert caller.write("k", 2) is True


def set_back_twice() -> Caller:
    """Return a caller whose store lost `other`, and then was restored to before `k`."""
    caller = Caller()
    for key, version in (("other", 1), ("k", 1), ("other", 2), ("same", 1)):
        caller.write(key, version)
    caller.store.delete("other")
    caller.write("same", 2)
    caller.store.restore(1)
    return caller


def test_a_store_set_back_twice_is_mended_when_both_are_over() -> None:
    caller = set_back_twice()
    caller.store.mend()
    assert {key: found.version for key, found in caller.store.objects.items()} == {"other": 1}
    caller.store.mend()
    assert {key: found.version for key, found in caller.store.objects.items()} == {
        "k": 1,
        "other": 2,
        "same": 2,
    }


def test_who_goes_on_from_a_store_that_was_set_back_is_found_out() -> None:
    caller = set_back_twice()
    caller.write("k", 1, value=b"anew")
    caller.store.mend()
    with pytest.raises(Violation, match="went on from an older state of 'k'"):
        caller.store.mend()
    caller = set_back_twice()
    caller.write("other", 2, value=b"anew")
    with pytest.raises(Violation, match="went on from an older state of 'other'"):
        caller.store.delete("other")


def test_two_callers_cannot_both_win() -> None:
    for seed in range(20):
        caller = Caller(seed)
        answers: list[object] = []
        for name in ("a", "b"):
            new = StoredObject(name.encode(), 1, ControllerEpoch(1))
            caller.swap("k", new, name)(answers.append)
        caller.world.run_until(SECOND)
        assert sorted(map(str, answers)) == ["False", "True"]
