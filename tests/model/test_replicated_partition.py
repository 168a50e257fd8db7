"""A leader and its followers over disks in memory, while messages get lost, late and repeated."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.replicated_partition import Broker, ReplicatedPartition

from millrace.core.errors import MillraceError
from millrace.core.metadata.model import PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replication.leader import Acks

BROKERS = st.integers(0, 2)
WIRE_MAX = 12


class ReplicationModel(RuleBasedStateMachine):
    """Three replicas, two of which must be in sync; whoever is right is `ReplicatedPartition`."""

    def __init__(self) -> None:
        super().__init__()
        self.produced = 0
        self.states: list[PartitionState] = []

    @initialize(durability=st.sampled_from(Durability))
    def begin(self, durability: Durability) -> None:
        """All replicas are empty and in sync."""
        self.partition = ReplicatedPartition(durability=durability)

    def broker(self, number: int) -> Broker:
        return self.partition.brokers[number]

    @rule(number=BROKERS, records=st.integers(1, 3), acks=st.sampled_from(Acks))
    def produce(self, number: int, records: int, acks: Acks) -> None:
        """Somebody sends to whom he takes for the leader."""
        broker = self.broker(number)
        if broker.leader is None:
            return
        self.produced += 1
        try:
            self.partition.produce(broker, str(self.produced), records=records, acks=acks)
        except MillraceError:
            return

    @rule(number=BROKERS)
    def write(self, number: int) -> None:
        """The disk does the next thing that is queued."""
        broker = self.broker(number)
        if broker.queue:
            broker.queue.popleft()()

    @rule(number=BROKERS)
    def flush(self, number: int) -> None:
        """What is written is made durable."""
        if self.broker(number).is_up:
            self.partition.flush(self.broker(number))

    @rule(number=BROKERS)
    def fetch(self, number: int) -> None:
        """A follower asks."""
        if len(self.partition.wire) < WIRE_MAX:
            self.partition.fetch(self.broker(number))

    @precondition(lambda self: self.partition.wire)
    @rule(data=st.data(), stays=st.booleans())
    def deliver(self, data: st.DataObject, stays: bool) -> None:
        """Any message arrives, perhaps not for the last time."""
        wire = self.partition.wire
        at = data.draw(st.integers(0, len(wire) - 1))
        message = wire[at] if stays and len(wire) < WIRE_MAX else wire.pop(at)
        self.partition.deliver(message)

    @rule(number=BROKERS)
    def replicate(self, number: int) -> None:
        """One follower is undisturbed for a while."""
        broker = self.broker(number)
        for _ in range(3):
            self.partition.fetch(broker)
            if self.partition.wire:
                self.partition.deliver(self.partition.wire.pop())
            if self.partition.wire:
                self.partition.deliver(self.partition.wire.pop())
            self.partition.write(broker)
            if broker.is_up:
                self.partition.flush(broker)

    @precondition(lambda self: self.partition.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A message never arrives."""
        wire = self.partition.wire
        wire.pop(data.draw(st.integers(0, len(wire) - 1)))

    @rule(ms=st.sampled_from([100, 1000, 11_000]))
    def pass_time(self, ms: int) -> None:
        """Leaders look at the time."""
        if len(self.partition.wire) < WIRE_MAX:
            self.partition.pass_time(ms)

    @rule(number=BROKERS)
    def hear_nothing_from_the_controller(self, number: int) -> None:
        """A proposal's connection breaks."""
        leader = self.broker(number).leader
        if leader is not None and leader.proposal is not None:
            leader.on_isr_unknown(leader.proposal, self.partition.now)

    @rule(number=BROKERS)
    def crash(self, number: int) -> None:
        """A process ends, with the power where the topic's durability is meant for that."""
        broker = self.broker(number)
        if broker.is_up:
            self.states.append(self.partition.controller.state)
            with_power = self.partition.rules.durability is Durability.FSYNC
            self.partition.crash(broker, power=with_power)

    @rule(number=BROKERS)
    def restart(self, number: int) -> None:
        """It comes back, as another life."""
        if not self.broker(number).is_up:
            self.partition.restart(self.broker(number))

    @rule(number=BROKERS)
    def fence(self, number: int) -> None:
        """The controller takes a broker for dead, which may be alive."""
        self.states.append(self.partition.controller.state)
        self.partition.controller.fence(self.broker(number).broker_id)

    @rule(number=BROKERS)
    def unfence(self, number: int) -> None:
        """The same life of the broker was only late."""
        if self.broker(number).is_up:
            self.partition.controller.unfence(self.broker(number).broker_id)

    @rule(number=BROKERS)
    def learn(self, number: int) -> None:
        """A broker hears what the controller decided."""
        self.partition.learn(self.broker(number))

    @precondition(lambda self: self.states)
    @rule(number=BROKERS, data=st.data())
    def learn_what_is_old(self, number: int, data: st.DataObject) -> None:
        """A broker hears what has long been changed."""
        self.partition.learn(self.broker(number), data.draw(st.sampled_from(self.states)))

    @invariant()
    def nothing_is_lost_and_nothing_diverges(self) -> None:
        """See `ReplicatedPartition.check`."""
        self.partition.check()

    def teardown(self) -> None:
        """When the faults end, all replicas become one, with all that was acknowledged."""
        if hasattr(self, "partition"):
            self.partition.settle()
            texts = self.partition.brokers[0].log.texts
            assert all(batch.text in texts for batch in self.partition.acknowledged.values())


TestReplication = ReplicationModel.TestCase
TestReplication.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
