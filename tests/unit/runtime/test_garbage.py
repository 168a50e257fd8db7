"""Collections of a broker's garbage: each looks at few objects, and nothing stays for ever."""

import gc
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from millrace.runtime.garbage import Garbage

OLDEST = 2


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    """The process's collections, as a broker has them."""
    before = gc.get_threshold()
    garbage = Garbage()
    garbage.begin()
    yield garbage
    garbage.end()
    gc.set_threshold(*before)


class Held:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it collects the oldest in small parts")
def test_a_broker_that_grows_has_little_for_the_next_collection_of_the_oldest(
    garbage: Garbage,
) -> None:
    grown = [[number] for number in range(1_000_000)]
    assert len(gc.get_objects(generation=OLDEST)) < 200_000
    assert garbage.added > 500_000
    del grown


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it collects the oldest in small parts")
def test_the_next_collection_of_the_oldest_has_little_also_after_one_of_everything(
    garbage: Garbage,
) -> None:
    looked_at: list[int] = []

    def look(phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start" and info["generation"] == OLDEST:
            looked_at.append(sum(len(gc.get_objects(generation=number)) for number in range(3)))

    grown = [[number] for number in range(1_000_000)]
    garbage.collect_all()
    assert garbage.kept > len(grown)
    gc.callbacks.insert(0, look)
    try:
        more = [[number] for number in range(400_000)]
    finally:
        gc.callbacks.remove(look)
    assert looked_at
    assert max(looked_at) < 150_000
    assert garbage.added > 200_000
    del grown, more


def test_what_survives_a_collection_of_the_oldest_is_not_looked_at_again(garbage: Garbage) -> None:
    grown = [[number] for number in range(10_000)]
    gc.collect()
    assert garbage.added >= len(grown)
    assert len(gc.get_objects(generation=OLDEST)) < 1000


def test_a_cycle_that_was_frozen_and_dropped_later_is_freed_when_everything_is_collected(
    garbage: Garbage,
) -> None:
    held = Held()
    gone = weakref.ref(held)
    gc.collect()
    del held
    gc.collect()
    assert gone() is not None, "it is frozen"
    garbage.collect_all()
    assert gone() is None
    assert garbage.added == 0


@pytest.mark.parametrize(
    ("grown", "share", "is_due"),
    [
        (1.9, 0.0, False),
        (2.1, 0.1, True),
        (2.1, 0.5, False),
        (3.9, 0.5, False),
        (4.1, 0.5, True),
    ],
)
def test_everything_is_collected_when_it_has_doubled_and_the_loop_is_quiet(
    garbage: Garbage, grown: float, share: float, is_due: bool
) -> None:
    frozen = gc.get_freeze_count()
    garbage.kept = int(frozen / grown)
    garbage.added = frozen - garbage.kept
    assert garbage.is_due(share) is is_due


def test_what_was_frozen_in_a_large_request_and_is_free_by_now_does_not_count(
    garbage: Garbage,
) -> None:
    """Otherwise everything is collected while requests are large, and the broker stands still."""
    request = [[number] for number in range(garbage.kept + garbage.kept // 2)]
    gc.collect()
    assert garbage.is_due(0.0)
    del request
    assert garbage.added > garbage.kept
    assert not garbage.is_due(0.0)
    assert garbage.added < garbage.kept / 2
