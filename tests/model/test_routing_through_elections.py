"""The routing machine through elections, broken connections, and answers that are late or lost.

Whatever happens: the leader epoch that is known never goes back, one look-up and one attempt to
connect to a broker are under way at most, and each comes after its pause. Once nothing fails any
more each partition is reached at its leader, within the longest pauses.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.client.routing.router import Connect, RefreshMetadata, Router
from millrace.core.errors import NotLeaderError
from millrace.core.ids import (
    BrokerId,
    KnownLeader,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    TopicId,
    TopicPartition,
)

PLACES = [TopicPartition(TopicId(b"t" * 16), number) for number in range(2)]
BROKERS = st.integers(0, 2).map(BrokerId)
SHORTEST_MS, LONGEST_MS = 100, 1_000


class Elections(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.router = Router(SHORTEST_MS, LONGEST_MS, 60_000, MonotonicMs(0))
        self.routes = [self.router.add("t", place) for place in PLACES]
        self.history = {place: [Leader(BrokerId(0), LeaderEpoch(0))] for place in PLACES}
        self.known: dict[TopicPartition, int] = {}
        self.is_looking_up = False
        self.looked_up_at = -LONGEST_MS
        self.connecting: set[BrokerId] = set()
        self.connected: set[BrokerId] = set()
        self.failed_at: dict[BrokerId, int] = {}

    def step(self) -> None:
        for route in self.routes:
            if route.retry_at <= self.now:
                self.router.reach(route)
        for effect in self.router.poll(MonotonicMs(self.now)):
            match effect:
                case Connect():
                    assert effect.broker_id not in self.connecting | self.connected
                    self.connecting.add(effect.broker_id)
                case RefreshMetadata():
                    assert not self.is_looking_up
                    assert self.now >= self.looked_up_at + SHORTEST_MS
                    self.is_looking_up = True

    @rule(place=st.sampled_from(PLACES), broker=st.one_of(BROKERS, st.just(BrokerId(-1))))
    def elect(self, place: TopicPartition, broker: BrokerId) -> None:
        epoch = LeaderEpoch(self.history[place][-1].leader_epoch + 1)
        self.history[place].append(Leader(broker, epoch))

    @precondition(lambda self: self.is_looking_up)
    @rule(data=st.data(), is_lost=st.booleans())
    def end_look_up(self, data: st.DataObject, is_lost: bool) -> None:
        """A look-up ends, with news as old as any, or with none."""
        if not is_lost:
            found = {
                place: data.draw(st.sampled_from(all_)) for place, all_ in self.history.items()
            }
            self.router.on_leaders(found)
        self.router.on_refreshed(MonotonicMs(self.now))
        self.is_looking_up, self.looked_up_at = False, self.now
        self.step()

    @rule(data=st.data(), number=st.integers(0, 1), is_hint=st.booleans())
    def refuse(self, data: st.DataObject, number: int, is_hint: bool) -> None:
        route, error = self.routes[number], NotLeaderError("not here")
        if is_hint:
            named = data.draw(st.sampled_from(self.history[PLACES[number]]))
            error.leader = KnownLeader(named, "h:1")
        if not self.router.on_hint(route, error):
            self.router.look_up("t")
            self.router.on_refused(route, MonotonicMs(self.now))
        self.step()

    @precondition(lambda self: self.connecting)
    @rule(data=st.data(), works=st.booleans())
    def end_attempt(self, data: st.DataObject, works: bool) -> None:
        broker = data.draw(st.sampled_from(sorted(self.connecting)))
        self.connecting.remove(broker)
        if works:
            self.connected.add(broker)
            self.router.on_connected(broker)
        else:
            self.router.on_disconnected(broker, MonotonicMs(self.now))
        self.step()

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), breaks=st.booleans())
    def use_connection(self, data: st.DataObject, breaks: bool) -> None:
        broker = data.draw(st.sampled_from(sorted(self.connected)))
        if breaks:
            self.connected.remove(broker)
            self.router.on_disconnected(broker, MonotonicMs(self.now))
        else:
            self.router.on_answered(broker)
        self.step()

    @rule(ms=st.sampled_from([1, 100, 1_000, 70_000]))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.step()

    @invariant()
    def leader_epochs_never_go_back(self) -> None:
        for place in PLACES:
            leader = self.router.leader(place)
            epoch = -1 if leader is None else leader.leader_epoch
            assert epoch >= self.known.get(place, -1)
            self.known[place] = epoch

    def teardown(self) -> None:
        """Nothing fails any more; an earlier leader refuses, and names no other."""
        for place in PLACES:
            self.elect(place, BrokerId(1))
        leaders = {place: all_[-1] for place, all_ in self.history.items()}
        ends_at = self.now + 4 * LONGEST_MS
        while self.now < ends_at:
            self.step()
            while self.connecting or self.is_looking_up:
                for broker in self.connecting:
                    self.router.on_connected(broker)
                self.connecting.clear()
                if self.is_looking_up:
                    self.router.on_leaders(leaders)
                    self.router.on_refreshed(MonotonicMs(self.now))
                    self.is_looking_up, self.looked_up_at = False, self.now
                self.step()
            if all(
                self.router.reach(route) == leaders[route.topic_partition] for route in self.routes
            ):
                return
            self.router.look_up("t")
            self.now = self.router.next_wake(MonotonicMs(self.now)) or ends_at
        raise AssertionError("a partition is not reached although nothing fails any more")


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=100, stateful_step_count=40)
