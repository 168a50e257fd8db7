"""What every coordination store must do, as tests: a store's own test class inherits them."""

import threading

import pytest
from tests.integration.running_broker import wait_until

from millrace.broker.coordination.store import CoordinationStore
from millrace.core.controller.lease import LeaseRecord
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import StoredObject

KEY = CLUSTER_KEY
FIRST, SECOND, THIRD, FOURTH = SHARD_KEYS[:4]

Stores = tuple[CoordinationStore, CoordinationStore]


def stored(version: int, value: bytes = b"x", controller_epoch: int = 1) -> StoredObject:
    return StoredObject(value, version, ControllerEpoch(controller_epoch))


def lease(version: int, holder: str = "a") -> LeaseRecord:
    return LeaseRecord(holder=holder, address="h:1", duration_ms=1500, version=version)


def swap(store: CoordinationStore, key: str, new: StoredObject) -> bool:
    return store.compare_and_swap_all([(key, new)])[0]


def read(store: CoordinationStore, key: str) -> StoredObject | None:
    return store.read_all([key])[0]


def wait_for_news(store: CoordinationStore, mark: int) -> None:
    """Wait until a store says that the lease may have changed since a mark."""
    wait_until(lambda: store.lease_mark() != mark, "the lease is said to have changed")


class StoreContract:
    """Subclasses have a fixture `stores`: two stores of one cluster, as two brokers open them."""

    @pytest.fixture
    def store(self, stores: Stores) -> CoordinationStore:
        return stores[0]

    def test_an_object_is_read_as_it_was_written(self, store: CoordinationStore) -> None:
        assert read(store, KEY) is None
        assert swap(store, KEY, stored(1, b"one"))
        assert read(store, KEY) == stored(1, b"one")
        assert swap(store, KEY, stored(2, b"two", controller_epoch=3))
        assert read(store, KEY) == stored(2, b"two", controller_epoch=3)

    def test_a_text_of_any_signs_comes_back_the_same(self, store: CoordinationStore) -> None:
        text = b'{"a":"\\u00e9 \\" \\\\ </script> &","b":[1,-1]}\x7f\t'
        swap(store, KEY, stored(1, text))
        assert read(store, KEY) == stored(1, text)

    @pytest.mark.parametrize("version", [1, 2, 4])
    def test_only_the_next_version_is_stored(self, store: CoordinationStore, version: int) -> None:
        swap(store, KEY, stored(1))
        swap(store, KEY, stored(2))
        assert not swap(store, KEY, stored(version, b"wrong"))
        assert read(store, KEY) == stored(2)

    def test_there_is_no_second_version_of_nothing(self, store: CoordinationStore) -> None:
        assert not swap(store, KEY, stored(2))
        assert read(store, KEY) is None

    def test_a_lower_controller_epoch_is_refused(self, store: CoordinationStore) -> None:
        swap(store, KEY, stored(1, controller_epoch=5))
        assert not swap(store, KEY, stored(2, controller_epoch=4))
        assert read(store, KEY) == stored(1, controller_epoch=5)
        assert swap(store, KEY, stored(2, controller_epoch=5))

    def test_what_may_not_be_written_is_not_written(self, store: CoordinationStore) -> None:
        """P38."""
        swap(store, SECOND, stored(1))
        writes = [(FIRST, stored(1)), (SECOND, stored(2))]
        assert store.compare_and_swap_all(writes, lambda: False) == [False, False]
        assert store.read_all([FIRST, SECOND]) == [None, stored(1)]
        assert store.compare_and_swap_all(writes, lambda: True) == [True, True]

    def test_writes_that_are_given_together_stand_each_for_itself(
        self, store: CoordinationStore
    ) -> None:
        swap(store, SECOND, stored(1))
        outcomes = store.compare_and_swap_all(
            [
                (FIRST, stored(1)),
                (SECOND, stored(1, b"wrong")),
                (THIRD, stored(1)),
                (SECOND, stored(2)),
            ]
        )
        assert outcomes == [True, False, True, True]
        found = store.read_all([FIRST, SECOND, THIRD, FOURTH])
        assert found == [stored(1), stored(2), stored(1), None]

    def test_what_one_broker_wrote_another_one_reads(self, stores: Stores) -> None:
        one, other = stores
        swap(one, KEY, stored(1))
        one.compare_and_swap_lease(lease(1))
        assert read(other, KEY) == stored(1)
        assert other.read_lease() == lease(1)

    def test_of_two_brokers_one_wins_each_version(self, stores: Stores) -> None:
        versions = 40
        wins = [0, 0]
        begin = threading.Barrier(2)

        def race(number: int) -> None:
            store = stores[number]
            begin.wait(30)
            while True:
                old = read(store, KEY)
                version = 1 if old is None else old.version + 1
                if version > versions:
                    return
                wins[number] += swap(store, KEY, stored(version, b"%d" % number))

        racers = [threading.Thread(target=race, args=(number,)) for number in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(60)
        assert sum(wins) == versions

    # The lease.

    def test_the_lease_is_under_compare_and_swap(self, stores: Stores) -> None:
        one, other = stores
        assert one.read_lease() is None
        assert one.compare_and_swap_lease(lease(1))
        assert not other.compare_and_swap_lease(lease(1, "b"))
        assert not other.compare_and_swap_lease(lease(3, "b"))
        assert other.compare_and_swap_lease(lease(2, "b"))
        assert not one.compare_and_swap_lease(lease(2))
        assert one.read_lease() == other.read_lease() == lease(2, "b")

    def test_a_lease_is_given_back_and_taken_again(self, stores: Stores) -> None:
        one, other = stores
        one.compare_and_swap_lease(lease(1))
        assert one.compare_and_swap_lease(lease(2, holder=""))
        assert other.read_lease() == lease(2, holder="")
        assert other.compare_and_swap_lease(lease(3, "b"))
        assert one.read_lease() == lease(3, "b")

    def test_who_watches_the_lease_is_told_of_each_write_of_another(self, stores: Stores) -> None:
        one, other = stores
        assert one.read_lease() is None
        for version in (1, 2, 3):
            mark = one.lease_mark()
            assert other.compare_and_swap_lease(lease(version, "b"))
            wait_for_news(one, mark)
            assert one.read_lease() == lease(version, "b")
