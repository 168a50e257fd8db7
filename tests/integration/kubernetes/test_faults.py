"""The store when the API server, or the way to it, is unwell (F39, F42-F44)."""

import threading
import time
from collections import Counter

import pytest
from tests.api_server.relay import ApiServerRelay, Delay, Drop, Event, Hang, Refuse
from tests.integration.coordination.store_contract import (
    FIRST,
    KEY,
    SECOND,
    lease,
    read,
    stored,
    swap,
    wait_for_news,
)
from tests.integration.kubernetes.conftest import OpenStore
from tests.integration.running_broker import wait_until

from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.broker.coordination.store import (
    CoordinationUnavailableError,
)
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.runtime.kubernetes.access import ApiAccess

# What no fault delays must be done in it too, on a busy machine: 33 objects, each with an fsync.
TIMEOUT_MS = 3000
ALL_KEYS = [CLUSTER_KEY, *SHARD_KEYS]


@pytest.fixture
def relayed(relay: ApiServerRelay) -> ApiAccess:
    """The way through the relay."""
    return ApiAccess(
        server=relay.url,
        namespace="brokers",
        tls=None,
        tls_server_name=None,
        token=lambda: None,
    )


@pytest.fixture
def store(relayed: ApiAccess, open_store: OpenStore) -> KubernetesStore:
    """A store behind the relay; closed before the relay is."""
    return open_store(access=relayed, request_timeout_ms=TIMEOUT_MS)


@pytest.fixture
def direct(open_store: OpenStore) -> KubernetesStore:
    """Another broker's store, which nothing happens to."""
    return open_store()


class News:
    """A lease that one store writes and another one watches."""

    def __init__(self, store: KubernetesStore, writer: KubernetesStore) -> None:
        self.store = store
        self.latest = lease(1)
        self._writer = writer

    def write(self) -> int:
        """Write the next version; return the watcher's mark from before."""
        mark = self.store.lease_mark()
        self.latest = lease(self.latest.version + 1)
        assert self._writer.compare_and_swap_lease(self.latest)
        return mark


def writes_of(relay: ApiServerRelay) -> Counter[str]:
    """How often each object was written."""
    return Counter(path for method, path in relay.requests if method == "PUT")


# Writes.


def test_a_conflict_is_a_refusal_that_looking_again_resolves(
    store: KubernetesStore, relay: ApiServerRelay
) -> None:
    swap(store, KEY, stored(1))
    relay.inject(Refuse(409), method="PUT")
    assert not swap(store, KEY, stored(2))
    assert read(store, KEY) == stored(1)
    assert swap(store, KEY, stored(2))


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(500),
        Refuse(500, is_done=True),
        Refuse(503, is_done=True),
        Hang(is_done=False),
        Hang(is_done=True),
        Drop(is_done=False),
        Drop(is_done=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [1, 2])
def test_an_answer_that_says_nothing_is_unavailability_and_nothing_is_sent_twice(
    store: KubernetesStore, relay: ApiServerRelay, fault: Refuse | Hang | Drop, version: int
) -> None:
    if version == 2:
        swap(store, KEY, stored(1))
    relay.inject(fault, method="POST" if version == 1 else "PUT")
    sent_before = len(relay.requests)
    began = time.monotonic()
    with pytest.raises(CoordinationUnavailableError):
        swap(store, KEY, stored(version, b"new"))
    assert time.monotonic() - began < TIMEOUT_MS / 1000 + 10
    assert len(relay.requests) == sent_before + 1
    found = read(store, KEY)
    old = stored(1) if version == 2 else None
    assert found == (stored(version, b"new") if fault.is_done else old)
    assert swap(store, KEY, stored(version, b"new")) is not fault.is_done
    assert swap(store, KEY, stored(version + 1, b"next"))


def test_a_pause_that_the_api_server_asks_for_is_kept(
    store: KubernetesStore, relay: ApiServerRelay
) -> None:
    swap(store, KEY, stored(1))
    pause_s = 4  # Longer than a busy machine may stand still.
    relay.inject(Refuse(429, retry_after=str(pause_s)), method="PUT")
    asked_at = time.monotonic()
    with pytest.raises(CoordinationUnavailableError, match="too many requests"):
        swap(store, KEY, stored(2))
    sent = len(relay.requests)
    with pytest.raises(CoordinationUnavailableError, match="asked for a pause"):
        read(store, KEY)
    assert len(relay.requests) == sent
    assert store.compare_and_swap_lease(lease(1))  # The lease has its own.

    def is_written() -> bool:
        try:
            return swap(store, KEY, stored(2))
        except CoordinationUnavailableError:
            return False

    wait_until(is_written, "the pause ends")
    assert time.monotonic() - asked_at >= pause_s


def test_a_pause_that_the_api_server_asks_for_does_not_cost_the_lease(
    open_store: OpenStore, relayed: ApiAccess, relay: ApiServerRelay
) -> None:
    pause_s = 4  # Longer than a busy machine may stand still.
    store = open_store(relayed, lease_pause_ms_max=pause_s * 1000)
    assert store.compare_and_swap_lease(lease(1))
    relay.inject(Refuse(503, retry_after="60"), method="PUT", path="/leases/")
    asked_at = time.monotonic()
    with pytest.raises(CoordinationUnavailableError, match="it failed"):
        store.compare_and_swap_lease(lease(2))
    with pytest.raises(CoordinationUnavailableError, match="asked for a pause"):
        store.read_lease()

    def is_renewed() -> bool:
        try:
            return store.compare_and_swap_lease(lease(2))
        except CoordinationUnavailableError:
            return False

    wait_until(is_renewed, "the lease is renewed", 40)
    assert pause_s <= time.monotonic() - asked_at < 60


def test_writes_go_side_by_side_and_not_all_at_once(
    store: KubernetesStore, relay: ApiServerRelay
) -> None:
    assert all(store.compare_and_swap_all([(key, stored(1)) for key in ALL_KEYS]))
    assert 2 <= relay.in_flight_max <= 8


def test_what_may_not_be_written_any_more_is_not_sent(
    open_store: OpenStore, relayed: ApiAccess, relay: ApiServerRelay
) -> None:
    """P38: the lease ran out while the first of them was answered."""
    store = open_store(relayed, requests_in_flight_max=1, request_timeout_ms=TIMEOUT_MS)
    store.compare_and_swap_all([(key, stored(1)) for key in (FIRST, SECOND, KEY)])
    answers = iter([True, False, False])
    writes = [(key, stored(2)) for key in (FIRST, SECOND, KEY)]
    outcomes = store.compare_and_swap_all(writes, lambda: next(answers))
    assert outcomes == [True, False, False]
    assert sum(writes_of(relay).values()) == 1


def test_of_many_writes_one_that_hangs_leaves_the_others_to_be_looked_at(
    store: KubernetesStore, relay: ApiServerRelay
) -> None:
    store.compare_and_swap_all([(key, stored(1)) for key in ALL_KEYS])
    relay.inject(Hang(is_done=True), method="PUT", path="-07")
    with pytest.raises(CoordinationUnavailableError):
        store.compare_and_swap_all([(key, stored(2, b"new")) for key in ALL_KEYS])
    assert max(writes_of(relay).values()) == 1
    found = dict(zip(ALL_KEYS, store.read_all(ALL_KEYS), strict=True))
    assert found["shards/07"] == stored(2, b"new")
    left = [key for key in ALL_KEYS if found[key] == stored(1)]
    assert all(store.compare_and_swap_all([(key, stored(2, b"new")) for key in left]))
    assert store.read_all(ALL_KEYS) == [stored(2, b"new")] * 33


def test_an_outage_is_told_within_a_bounded_time_and_leaves_nothing_behind(
    store: KubernetesStore, relay: ApiServerRelay
) -> None:
    store.compare_and_swap_all([(key, stored(1)) for key in ALL_KEYS])
    store.compare_and_swap_lease(lease(1))
    for fault in (Hang(is_done=False), Drop(is_done=False)):
        with relay.outage(fault):
            began = time.monotonic()
            for call in (
                lambda: store.read_all(ALL_KEYS),
                lambda: store.compare_and_swap_all([(key, stored(2)) for key in ALL_KEYS]),
                store.read_lease,
                lambda: store.compare_and_swap_lease(lease(2)),
            ):
                with pytest.raises(CoordinationUnavailableError):
                    call()
            assert time.monotonic() - began < 6 * TIMEOUT_MS / 1000 + 5
    assert store.read_all(ALL_KEYS) == [stored(1)] * 33
    assert store.compare_and_swap_lease(lease(2))
    assert swap(store, KEY, stored(2))


# Two controllers (F39).


def test_a_controller_that_was_replaced_writes_nothing_any_more(
    store: KubernetesStore, direct: KubernetesStore
) -> None:
    keys = [KEY, FIRST, SECOND]
    store.compare_and_swap_all([(key, stored(1, b"old", 1)) for key in keys])
    assert direct.read_all(keys) == [stored(1, b"old", 1)] * 3
    # The successor claims every object; the zombie has not looked since.
    assert all(direct.compare_and_swap_all([(key, stored(2, b"new", 2)) for key in keys]))
    assert not any(store.compare_and_swap_all([(key, stored(2, b"zombie", 1)) for key in keys]))
    # Nor with the newest version at hand, by the API server's own rule.
    assert store.read_all(keys) == [stored(2, b"new", 2)] * 3
    assert not any(store.compare_and_swap_all([(key, stored(3, b"zombie", 1)) for key in keys]))
    assert direct.read_all(keys) == [stored(2, b"new", 2)] * 3


def test_a_zombie_s_write_that_was_held_up_on_the_way_is_refused(
    store: KubernetesStore, direct: KubernetesStore, relay: ApiServerRelay
) -> None:
    """It was sent while its controller held the lease, and arrives after the successor's."""
    swap(store, KEY, stored(1))
    held = threading.Event()
    arrived: list[bool] = []
    relay.inject(Delay(held), method="PUT")
    zombie = threading.Thread(target=lambda: arrived.append(_outcome(store, stored(2, b"late"))))
    zombie.start()
    wait_until(lambda: writes_of(relay), "the write is on its way")
    assert read(direct, KEY) == stored(1)
    assert swap(direct, KEY, stored(2, b"new", controller_epoch=2))
    held.set()
    zombie.join(30)
    assert arrived == [False]
    assert read(direct, KEY) == stored(2, b"new", controller_epoch=2)


def _outcome(store: KubernetesStore, new: StoredObject) -> bool:
    try:
        return swap(store, KEY, new)
    except CoordinationUnavailableError:
        return False


# The lease.


@pytest.mark.parametrize("fault", [Hang(is_done=True), Drop(is_done=True)], ids=str)
def test_a_renewal_whose_answer_was_lost_is_recognised_as_our_own(
    store: KubernetesStore, relay: ApiServerRelay, fault: Hang | Drop
) -> None:
    store.compare_and_swap_lease(lease(1))
    relay.inject(fault, method="PUT")
    with pytest.raises(CoordinationUnavailableError):
        store.compare_and_swap_lease(lease(2))
    assert store.read_lease() == lease(2)
    assert store.compare_and_swap_lease(lease(3))


# Watches (F44).


@pytest.fixture
def news(store: KubernetesStore, direct: KubernetesStore, relay: ApiServerRelay) -> News:
    """The lease, written by one store and watched by the other."""
    assert direct.compare_and_swap_lease(lease(1))
    wait_for_news(store, 0)  # A watch begins with what is there.
    assert relay.watches == 1
    return News(store, direct)


def test_a_watch_that_breaks_off_is_begun_anew(news: News, relay: ApiServerRelay) -> None:
    for _ in range(3):
        mark = news.store.lease_mark()
        assert relay.cut_watches() == 1
        news.write()  # While nobody watches: the next watch begins with it.
        wait_for_news(news.store, mark)
        wait_until(lambda: relay.watches == 1, "the lease is watched again")


@pytest.mark.parametrize("is_in_the_stream", [True, False])
def test_a_watch_goes_on_when_the_history_is_gone(
    news: News, relay: ApiServerRelay, is_in_the_stream: bool
) -> None:
    if is_in_the_stream:
        gone: Event = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
        assert relay.send_to_watches(gone) == 1
    else:
        relay.inject(Refuse(410), path="watch=", times=2)
    relay.cut_watches()
    wait_until(lambda: relay.watches == 1, "the lease is watched again")
    mark = news.write()
    wait_for_news(news.store, mark)


def test_events_that_are_lost_or_late_make_no_reader_read_something_old(
    news: News, relay: ApiServerRelay
) -> None:
    relay.hold_watches()
    mark = news.write()
    assert news.store.read_lease() == news.latest
    assert news.store.lease_mark() == mark
    relay.release_watches()
    wait_for_news(news.store, mark)
    relay.change_events(lambda _: [])
    mark = news.write()
    assert news.store.read_lease() == news.latest
    assert news.store.lease_mark() == mark


def test_events_that_come_twice_and_in_the_wrong_order_do_no_harm(
    news: News, relay: ApiServerRelay
) -> None:
    earlier: list[Event] = []

    def repeat(event: Event) -> list[Event]:
        earlier.append(event)
        return [*earlier[-3:], event]

    relay.change_events(repeat)
    for _ in range(6):
        mark = news.write()
        wait_for_news(news.store, mark)
        assert news.store.read_lease() == news.latest


def test_a_watch_is_had_again_after_an_outage(news: News, relay: ApiServerRelay) -> None:
    mark = news.store.lease_mark()
    with relay.outage(Drop(is_done=False)):
        news.write()
        assert news.store.lease_mark() == mark
    wait_for_news(news.store, mark)
