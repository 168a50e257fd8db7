"""What a broker remembers of the coordination store (P39)."""

from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.objects.store_versions import (
    NOTHING_SEEN,
    RememberedVersions,
    StoreVersions,
)


def seen(epoch: int, cluster: int) -> StoreVersions:
    return StoreVersions(ControllerEpoch(epoch), (cluster, *NOTHING_SEEN.versions[1:]))


def test_one_includes_another_that_is_nowhere_ahead() -> None:
    assert seen(2, 7).includes(seen(2, 7))
    assert seen(2, 7).includes(seen(1, 7))
    assert not seen(2, 7).includes(seen(1, 8))
    assert not seen(2, 7).includes(seen(3, 1))


def test_what_a_broker_has_seen_itself_is_kept() -> None:
    memory = RememberedVersions()
    memory.on_seen(seen(1, 5))
    memory.on_seen(seen(2, 6))
    assert memory.seen == seen(2, 6)


def test_what_it_saw_of_a_history_that_must_not_be_gone_on_with_is_not_kept() -> None:
    """Its own controller, of epoch 2, went on from a store that was set back to version 9."""
    memory = RememberedVersions()
    memory.on_seen(seen(2, 11))
    memory.on_seen_elsewhere(seen(1, 13))
    assert memory.seen == seen(1, 13)
    memory.on_seen(seen(2, 12))
    assert memory.seen == seen(1, 13)


def test_once_it_has_seen_as_much_its_own_is_kept_again() -> None:
    memory = RememberedVersions()
    memory.on_seen_elsewhere(seen(1, 13))
    memory.on_seen(seen(2, 14))
    assert memory.seen == seen(2, 14)
