"""A leader and its followers over disks in memory, while messages get lost, late and repeated.

Between two faults there is traffic: some dozen small steps that a drawn seed chooses, since a fault
in the middle of nothing shows nothing.
"""

from collections.abc import Callable
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.fakes.replicated_partition import Broker, ReplicatedPartition

from millrace.core.errors import MillraceError
from millrace.core.metadata.model import PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replication.leader import Acks

REPLICAS = 3
BROKERS = st.integers(0, REPLICAS - 1)
WIRE_MAX = 12
STEPS_OF_TRAFFIC = 40
FAULTS = (
    *["none"] * 6,
    "silence",
    "no answer",
    "crash",
    "crash that is noticed",
    "fence",
    "move",
    "old news",
)


class ReplicationModel(RuleBasedStateMachine):
    """What must be true is `ReplicatedPartition.check`, and holds after every step of traffic."""

    def __init__(self) -> None:
        super().__init__()
        self.produced = self.rounds = 0
        self.states: list[PartitionState] = []

    @initialize(durability=st.sampled_from(Durability), min_insync_replicas=st.integers(1, 2))
    def begin(self, durability: Durability, min_insync_replicas: int) -> None:
        """All replicas are empty and in sync."""
        self.partition = ReplicatedPartition(
            replicas=REPLICAS, durability=durability, min_insync_replicas=min_insync_replicas
        )

    def broker(self, number: int) -> Broker:
        return self.partition.brokers[number]

    # --- Traffic -----------------------------------------------------------------------------

    def traffic(self, seed: int, loss: float) -> None:
        """Producers send, disks write, followers fetch; the wire loses, repeats and reorders."""
        self.rounds += 1
        random = Random(seed * 1000 + self.rounds)  # The same small seeds are drawn often.
        steps: list[Callable[[Random, Broker], None]] = [
            self._produce,
            self._write,
            self._flush,
            self._fetch,
            self._deliver,
            self._deliver,
            self._deliver_late,
            self._learn,
            self._tick,
            self._recover,
            self._replicate,
        ]
        weights = [3, 5, 4, 5, 8, 4, 2, 1, 2, 1, 4]
        for step in random.choices(steps, weights, k=STEPS_OF_TRAFFIC):
            wire = self.partition.wire
            if wire and random.random() < loss:
                wire.pop(random.randrange(len(wire)))
            step(random, random.choice(self.partition.brokers))
            self.partition.check()

    def _produce(self, random: Random, _: Broker) -> None:
        leaders = [broker for broker in self.partition.brokers if broker.leader]
        if not leaders:
            return
        broker = random.choice(leaders)
        self.produced += 1
        acks = random.choice([Acks.ALL, Acks.ALL, Acks.LEADER])
        try:
            self.partition.produce(
                broker, str(self.produced), records=random.randint(1, 3), acks=acks
            )
        except MillraceError:
            return

    def _write(self, _: Random, broker: Broker) -> None:
        if broker.queue:
            broker.queue.popleft()()

    def _flush(self, _: Random, broker: Broker) -> None:
        if broker.is_up:
            self.partition.flush(broker)

    def _fetch(self, _: Random, broker: Broker) -> None:
        if len(self.partition.wire) < WIRE_MAX:
            self.partition.fetch(broker)

    def _replicate(self, random: Random, broker: Broker) -> None:
        """Let one follower fetch and report undisturbed, as nearly always."""
        for _ in range(2):
            before = len(self.partition.wire)
            self.partition.fetch(broker)
            while len(self.partition.wire) > before:
                self.partition.deliver(self.partition.wire.pop())
            self.partition.write(broker)
            self._flush(random, broker)

    def _deliver(self, _: Random, __: Broker) -> None:
        if self.partition.wire:
            self.partition.deliver(self.partition.wire.pop())

    def _deliver_late(self, random: Random, _: Broker) -> None:
        wire = self.partition.wire
        if wire:
            at = random.randrange(len(wire))
            stays = random.random() < 0.5 and len(wire) < WIRE_MAX
            self.partition.deliver(wire[at] if stays else wire.pop(at))

    def _learn(self, random: Random, broker: Broker) -> None:
        self.partition.learn(broker)
        if random.random() < 0.5:
            self.partition.learn_all()

    def _tick(self, _: Random, __: Broker) -> None:
        if len(self.partition.wire) < WIRE_MAX:
            self.partition.pass_time(500)

    def _recover(self, _: Random, broker: Broker) -> None:
        if broker.is_up:
            self.partition.controller.unfence(broker.broker_id)
        else:
            self.partition.restart(broker)

    # --- Faults ------------------------------------------------------------------------------

    @rule(
        fault=st.sampled_from(FAULTS),
        number=BROKERS,
        back=st.integers(0, 5),
        seed=st.integers(0, 2**32),
        loss=st.sampled_from([0.0, 0.05, 0.3]),
    )
    def go_on(self, fault: str, number: int, back: int, seed: int, loss: float) -> None:
        """Something happens to a broker, then there is traffic."""
        broker, controller = self.broker(number), self.partition.controller
        if controller.state not in self.states:
            self.states.append(controller.state)
        match fault:
            case "silence":  # So long that leaders want their followers out.
                self.partition.pass_time(11_000)
            case "no answer" if broker.leader and broker.leader.proposal:
                broker.leader.on_isr_unknown(broker.leader.proposal, self.partition.now)
            case "crash" | "crash that is noticed" if broker.is_up:
                # Without power where the topic's durability is meant for that.
                power = self.partition.rules.durability is Durability.FSYNC
                self.partition.crash(broker, power=power)
                if fault == "crash that is noticed":
                    controller.fence(broker.broker_id)
            case "fence":  # Though it is alive, perhaps.
                controller.fence(broker.broker_id)
            case "move":
                controller.move(broker.broker_id)
            case "old news":
                self.partition.learn(broker, self.states[-1 - back % len(self.states)])
        self.partition.check()
        self.traffic(seed, loss)

    def teardown(self) -> None:
        """When the faults end, all replicas become one, with all that was acknowledged."""
        if hasattr(self, "partition"):
            self.partition.settle()
            batches = self.partition.brokers[0].log.batches
            assert set(self.partition.acknowledged.values()) <= set(batches)


TestReplication = ReplicationModel.TestCase
TestReplication.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
