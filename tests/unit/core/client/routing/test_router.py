"""The routing machine, effect by effect."""

from itertools import pairwise

import pytest
from tests.fakes.calls import calls_in

from millrace.core.client.routing.route import Route
from millrace.core.client.routing.router import Connect, Effect, RefreshMetadata, Router
from millrace.core.errors import (
    BrokerShuttingDownError,
    MillraceError,
    NotLeaderError,
    UnknownLeaderEpochError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    KnownLeader,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    TopicId,
    TopicPartition,
)

BROKER, OTHER = BrokerId(1), BrokerId(2)
TOPIC_ID = TopicId(b"t" * 16)
PLACE, SECOND = TopicPartition(TOPIC_ID, 0), TopicPartition(TOPIC_ID, 1)
MAX_AGE_MS = 300_000


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def leader(broker_id: int, epoch: int) -> Leader:
    return Leader(BrokerId(broker_id), LeaderEpoch(epoch))


def moved_to(broker_id: int, epoch: int) -> NotLeaderError:
    error = NotLeaderError("moved")
    error.leader = KnownLeader(leader(broker_id, epoch), "h:1")
    return error


def make() -> tuple[Router, Route]:
    """Return a router with one partition, whose leader is known and connected."""
    router = Router(100, 1_000, MAX_AGE_MS, at(0))
    route = router.add("t", PLACE)
    router.on_leaders({PLACE: leader(BROKER, 3)})
    router.on_connected(BROKER)
    assert router.reach(route) == leader(BROKER, 3)
    return router, route


def tried(router: Router, route: Route, ms: int) -> list[Effect]:
    """Return what the machine does at a time at which there is something to send."""
    router.reach(route)
    return router.poll(at(ms))


def test_a_partition_is_reached_once_its_leader_is_known_and_connected() -> None:
    router = Router(100, 1_000, MAX_AGE_MS, at(0))
    route = router.add("t", PLACE)
    assert router.reach(route) is None
    assert router.poll(at(0)) == [RefreshMetadata(["t"])]
    router.on_leaders({PLACE: leader(BROKER, 3)})
    router.on_refreshed(at(1))
    assert tried(router, route, 1) == [Connect(BROKER)]
    assert tried(router, route, 2) == [], "one attempt is under way"
    router.on_connected(BROKER)
    assert router.reach(route) == leader(BROKER, 3)
    assert router.poll(at(3)) == []


def test_what_is_not_used_is_not_looked_up() -> None:
    router, route = make()
    router.on_leaders({SECOND: leader(NO_BROKER, 1)})
    assert tried(router, route, 0) == []
    assert router.leader(SECOND) == leader(NO_BROKER, 1)


# Leaders.


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_leader_never_gives_way_to_one_of_an_earlier_epoch(epoch: int) -> None:
    router, route = make()
    assert router.on_leaders({PLACE: leader(OTHER, 2)}) == []
    assert not router.on_hint(route, moved_to(OTHER, epoch - 1))
    assert router.leader(PLACE) == leader(BROKER, 3)


def test_news_are_leaders_of_a_later_epoch() -> None:
    router, _ = make()
    assert router.on_leaders({PLACE: leader(BROKER, 3)}) == []
    assert router.on_leaders({PLACE: leader(BROKER, 4), SECOND: leader(OTHER, 0)}) == [
        PLACE,
        SECOND,
    ]
    assert router.on_leaders({PLACE: leader(NO_BROKER, 5)}) == [PLACE]
    assert router.on_leaders({PLACE: leader(NO_BROKER, 5)}) == []


def test_a_refusal_that_names_a_later_leader_is_news() -> None:
    router, route = make()
    assert router.on_hint(route, moved_to(OTHER, 4))
    assert router.leader(PLACE) == leader(OTHER, 4)
    assert not router.on_hint(route, moved_to(OTHER, 4)), "it is known by now"


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("moved"),
        moved_to(NO_BROKER, 4),
        moved_to(OTHER, 3),
        UnknownLeaderEpochError("later"),
        BrokerShuttingDownError("stopping"),
    ],
)
def test_a_refusal_that_names_no_other_leader_is_no_news(error: MillraceError) -> None:
    router, route = make()
    assert not router.on_hint(route, error)
    assert router.leader(PLACE) == leader(BROKER, 3)


def test_each_failure_doubles_a_partitions_pause_until_a_request_succeeds() -> None:
    router, route = make()
    pauses = []
    for _ in range(6):
        router.on_refused(route, at(0))
        pauses.append(route.retry_at)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]
    route.failures = 0
    router.on_refused(route, at(5_000))
    assert route.retry_at == 5_100


def test_another_leader_ends_a_partitions_pause() -> None:
    router, route = make()
    for epoch, news in ((4, True), (5, False)):
        for _ in range(3):
            router.on_refused(route, at(0))
        if news:
            router.on_leaders({PLACE: leader(OTHER, epoch)})
        else:
            assert router.on_hint(route, moved_to(BROKER, epoch))
        assert (route.retry_at, route.failures) == (0, 0)
    router.on_refused(route, at(0))
    router.on_leaders({PLACE: leader(BROKER, 5)})
    assert route.retry_at == 100, "that is known already"


# Look-ups.


def test_one_look_up_is_under_way_and_the_next_follows_after_a_pause() -> None:
    router, route = make()
    router.look_up("t")
    router.look_up("u")
    assert router.poll(at(0)) == [RefreshMetadata(["t", "u"])]
    router.look_up("t")
    assert router.poll(at(50_000)) == []
    router.on_refreshed(at(50_000))
    assert router.poll(at(50_000)) == []
    assert router.next_wake(at(50_000)) == 50_100
    assert router.poll(at(50_100)) == [RefreshMetadata(["t"])]
    router.on_refreshed(at(50_101))
    assert tried(router, route, 60_000) == []


def look_ups(router: Router, route: Route, begin: int, end: int) -> list[int]:
    """Return when look-ups happen, each of which finds that nobody leads."""
    times: list[int] = []
    now = begin
    while now < end:
        if RefreshMetadata(["t"]) in tried(router, route, now):
            times.append(now)
            router.on_leaders({PLACE: leader(NO_BROKER, 4)})
            router.on_refreshed(at(now))
            router.reach(route)
        now = router.next_wake(at(now)) or end
    return times


def test_a_missing_leader_is_looked_up_less_and_less_often() -> None:
    router, route = make()
    router.on_leaders({PLACE: leader(NO_BROKER, 4)})
    times = look_ups(router, route, 0, 60_000)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:10] == [100] * 10
    assert all(pause <= max(100, now / 10) for now, pause in zip(times, pauses, strict=False))
    assert pauses[-30:] == [1_000] * 30


def test_what_may_be_the_end_of_a_leadership_lets_look_ups_begin_again() -> None:
    router, route = make()
    router.on_leaders({PLACE: leader(NO_BROKER, 4)})
    last = look_ups(router, route, 0, 60_000)[-1]
    router.look_up("t")
    assert look_ups(router, route, last, last + 350) == [last + 100, last + 200, last + 300]


def test_look_ups_of_another_outage_begin_again() -> None:
    router, route = make()
    router.poll(at(0))
    router.on_disconnected(BROKER, at(0))
    for ms in range(0, 60_000, 100):
        if RefreshMetadata(["t"]) in tried(router, route, ms):
            router.on_refreshed(at(ms))
    router.on_connected(BROKER)
    assert tried(router, route, 70_000) == [RefreshMetadata(["t"])], "it was due"
    router.on_refreshed(at(70_000))
    assert tried(router, route, 70_000) == []
    router.on_disconnected(BROKER, at(80_000))
    assert tried(router, route, 80_000) == [RefreshMetadata(["t"])]
    router.on_refreshed(at(80_000))
    assert RefreshMetadata(["t"]) in tried(router, route, 80_100)


def test_news_of_another_used_partition_let_look_ups_begin_again() -> None:
    router, route = make()
    router.on_leaders({PLACE: leader(NO_BROKER, 4)})
    last = look_ups(router, route, 0, 60_000)[-1]
    router.on_leaders({SECOND: leader(OTHER, 1)})
    assert router.next_wake(at(last)) == last + 1_000, "that one is not used"
    router.add("t", SECOND)
    router.on_leaders({SECOND: leader(OTHER, 2)})
    assert router.next_wake(at(last)) == last + 100


def test_topics_in_use_are_looked_up_from_time_to_time() -> None:
    router, route = make()
    router.add("u", TopicPartition(TopicId(b"u" * 16), 0))
    assert router.poll(at(1_000)) == []
    assert router.next_wake(at(1_000)) == MAX_AGE_MS
    assert router.poll(at(MAX_AGE_MS)) == [RefreshMetadata(["t", "u"])]
    router.on_refreshed(at(MAX_AGE_MS))
    router.remove(route)
    assert router.poll(at(2 * MAX_AGE_MS)) == [RefreshMetadata(["u"])]


def test_without_a_partition_nothing_is_looked_up() -> None:
    router, route = make()
    router.remove(route)
    router.poll(at(0))
    assert router.next_wake(at(0)) is None
    assert router.poll(at(MAX_AGE_MS)) == []


def test_a_look_up_that_waits_is_dropped_with_the_topics_last_partition() -> None:
    router, route = make()
    second = router.add("t", SECOND)
    router.look_up("t")
    assert router.poll(at(0)) == [RefreshMetadata(["t"])]
    router.on_refreshed(at(0))
    router.look_up("t")
    assert router.poll(at(1)) == [], "a pause lies between look-ups"
    router.remove(second)
    assert router.next_wake(at(1)) == 100
    router.remove(route)
    assert router.next_wake(at(1)) is None
    assert router.poll(at(1_000)) == []


# Topics that are gone.


def test_a_topic_is_gone_when_two_look_ups_in_a_row_do_not_find_it() -> None:
    router, route = make()
    assert router.on_topics({"t": None}) == []
    assert router.poll(at(0)) == [RefreshMetadata(["t"])]
    assert router.on_topics({"t": TOPIC_ID}) == []
    assert router.on_topics({"t": None}) == [], "it was found in between"
    assert route.deletion == ""
    assert router.on_topics({"t": None}) == [route]
    assert route.deletion == "the topic 't' was deleted"
    assert router.leader(PLACE) is None
    router.on_topics({"t": TOPIC_ID})
    assert route.deletion == ""


def test_a_topic_is_gone_when_another_one_has_its_name() -> None:
    router, route = make()
    new = router.add("t", TopicPartition(TopicId(b"u" * 16), 0))
    assert router.on_topics({"t": TopicId(b"u" * 16)}) == [route]
    assert route.deletion == "the topic 't' was deleted and made again"
    assert new.deletion == ""


def test_a_topic_that_is_not_used_is_never_gone() -> None:
    router, route = make()
    for _ in range(2):
        assert router.on_topics({"u": None}) == []
    router.on_topics({"t": None})
    router.remove(route)
    route = router.add("t", PLACE)
    assert router.on_topics({"t": None}) == [], "it counts from when it is used"


class ComparedName(str):
    """A topic's name; comparing it counts as a call."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other)


def test_a_look_up_of_all_topics_costs_what_they_are_and_not_their_square() -> None:
    def calls_for(count: int) -> int:
        router = Router(100, 1_000, MAX_AGE_MS, at(0))
        names = [ComparedName(number) for number in range(count)]
        ids = [TopicId(b"%016d" % number) for number in range(count)]
        for name, topic_id in zip(names, ids, strict=True):
            router.add(name, TopicPartition(topic_id, 0))
        topics: dict[str, TopicId | None] = dict(zip(names, ids, strict=True))
        return calls_in(lambda: router.on_topics(topics))

    assert calls_for(400) <= 2 * calls_for(200)


# Connections.


def test_the_pause_before_a_connection_doubles_until_the_broker_answers() -> None:
    router, route = make()
    pauses, now = [], 0
    for _ in range(6):
        router.on_disconnected(BROKER, at(now))
        assert Connect(BROKER) not in tried(router, route, now)
        began = now
        while Connect(BROKER) not in tried(router, route, now):
            now += 100
        pauses.append(now - began)
        router.on_connected(BROKER)  # That proves nothing: it may break at once.
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]
    router.on_answered(BROKER)
    router.on_disconnected(BROKER, at(now))
    router.reach(route)
    assert Connect(BROKER) in tried(router, route, now + 100)


def test_the_machine_wakes_for_a_connection_that_is_wanted() -> None:
    router, route = make()
    router.poll(at(0))
    router.on_disconnected(BROKER, at(0))
    assert router.next_wake(at(0)) == MAX_AGE_MS, "nobody wants it"
    assert tried(router, route, 0) == [RefreshMetadata(["t"])]
    assert router.next_wake(at(0)) == 100
    assert router.poll(at(100)) == [Connect(BROKER)]


def test_a_broker_that_is_elected_is_connected_to_at_once() -> None:
    router, route = make()
    now = 0
    for _ in range(9):
        router.on_disconnected(BROKER, at(now))
        assert Connect(BROKER) not in tried(router, route, now)
        now += 1_000
        assert Connect(BROKER) in tried(router, route, now)
    router.on_disconnected(BROKER, at(now))
    router.on_leaders({PLACE: leader(BROKER, 3)})
    assert Connect(BROKER) not in tried(router, route, now), "that is no news"
    router.on_leaders({PLACE: leader(BROKER, 4)})
    assert Connect(BROKER) in tried(router, route, now)
    router.on_disconnected(BROKER, at(now))
    assert Connect(BROKER) in tried(router, route, now + 100), "and the pauses begin again"


def test_a_successor_is_looked_up_while_a_leader_cannot_be_reached() -> None:
    router, route = make()
    router.on_disconnected(BROKER, at(0))
    assert tried(router, route, 0) == [RefreshMetadata(["t"])]
    router.on_refreshed(at(0))
    assert tried(router, route, 100) == [Connect(BROKER), RefreshMetadata(["t"])]
    for ms in (200, 300, 400):  # The attempt is under way all that time.
        router.on_refreshed(at(ms - 100))
        assert tried(router, route, ms) == [RefreshMetadata(["t"])]
    router.on_connected(BROKER)
    router.on_refreshed(at(400))
    assert tried(router, route, 600) == []


# Read replicas.


def test_a_reader_that_was_sent_on_reaches_the_follower_under_the_leaders_epoch() -> None:
    router, route = make()
    router.on_read_replica(route, OTHER, at(10))
    assert route.ask_leader_at == 10 + MAX_AGE_MS
    assert router.reach(route) is None
    assert router.poll(at(10)) == [Connect(OTHER)]
    router.on_connected(OTHER)
    assert router.reach(route) == leader(BROKER, 3)


def test_a_reader_that_returned_to_the_leader_asks_it_again_later() -> None:
    router, route = make()
    router.on_read_replica(route, OTHER, at(10))
    route.return_to_leader()
    assert (route.read_replica, route.from_leader) == (NO_BROKER, True)
    assert route.ask_leader_at == 10 + MAX_AGE_MS
    assert router.reach(route) == leader(BROKER, 3)


def test_what_the_follower_refused_makes_no_pause_at_the_leader_longer() -> None:
    router, route = make()
    for leave in (route.ask_leader, route.return_to_leader):
        router.on_read_replica(route, OTHER, at(0))
        route.failures = 3
        leave()
        router.on_refused(route, at(0))
        assert route.retry_at == 100


def test_a_reader_that_asks_the_leader_lets_it_decide() -> None:
    router, route = make()
    router.on_read_replica(route, OTHER, at(10))
    route.return_to_leader()
    route.ask_leader()
    assert (route.read_replica, route.from_leader) == (NO_BROKER, False)
    assert route.ask_leader_at is None
