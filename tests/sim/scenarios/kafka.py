"""Scenarios of clients of Kafka, alone and beside Millrace's own, in the same topics and groups.

Writers and readers of both kinds are the same classes with the same judges; only what they speak
differs. So records of either are read by both, and one history has all of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

from tests.sim.clients.kafka.consumer_members import KafkaConsumerMember
from tests.sim.clients.kafka.upgrades import RESTARTED, UPGRADED, Upgraded
from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Load
from tests.sim.clients.transactional import TransactionPlan
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.machines.network import Weather
from tests.sim.scenarios.groups import COORDINATOR, STANDS_STILL, grouped_topic
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, again, hasty
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation

_SOON: Final = 100 * MILLISECOND


class Mixed(ScenarioCluster):
    """Half of all writers and readers speak Kafka's protocol."""

    kafka_share = 0.5
    topics = (
        TopicPlan(
            partitions=3,
            loads=(
                Load(every_us=_SOON, burst_max=5),
                Load(every_us=_SOON, burst_max=5),
                Load(every_us=3 * _SOON, is_patient=False),
            ),
            polls_every_us=_SOON,
            reads_followers=True,
        ),
    )


class Stamped(Mixed):
    """Leaders give the times."""

    topics = (
        TopicPlan(
            partitions=2,
            config={"message.timestamp.type": "LogAppendTime"},
            loads=(Load(every_us=_SOON, burst_max=5), Load(every_us=_SOON, burst_max=5)),
            polls_every_us=_SOON,
        ),
    )


class Unknown(ScenarioCluster):
    """Each burst of all producers, of Kafka alone, comes from one that no broker knows."""

    kafka_share = 1.0
    topics = (
        TopicPlan(
            partitions=2,
            loads=3 * (Load(every_us=2 * _SOON, burst_max=5, is_new=True),),
            polls_every_us=_SOON,
        ),
    )


class Lacking(Unknown):
    """All replicas have to be in sync, so leaders refuse batches while one is away."""

    settings = Settings(replication=hasty(1_000))
    topics = (
        TopicPlan(
            partitions=3,
            config={"min.insync.replicas": "3"},
            loads=3 * (Load(every_us=2 * _SOON, burst_max=5, is_new=True),),
            polls_every_us=2 * _SOON,
        ),
    )


class Transacting(ScenarioCluster):
    """Writers of transactions by Kafka's first protocol, and readers of both."""

    kafka_share = 0.7
    topics = (
        TopicPlan(
            partitions=3,
            loads=(Load(every_us=5 * _SOON),),
            polls_every_us=_SOON,
            transactions=TransactionPlan(writers=2, every_us=2 * _SOON, timeout_ms=3_000),
        ),
    )


class Copying(ScenarioCluster):
    """A group of Kafka's clients copies what they have written."""

    kafka_share = 1.0
    topics = (
        dataclasses.replace(Transacting.topics[0], partitions=4),
        TopicPlan(name="copy", partitions=4, loads=(), polls_every_us=2 * _SOON, copies="t"),
    )


class Administered(ScenarioCluster):
    """Administrators of Kafka's beside writers and readers of both kinds."""

    kafka_share = 0.5
    topics = (
        TopicPlan(
            partitions=2,
            loads=(Load(every_us=2 * _SOON), Load(every_us=2 * _SOON)),
            polls_every_us=_SOON,
            is_administered=True,
            group=GroupPlan(members=2),
        ),
    )


class Classic(ScenarioCluster):
    """A group of Kafka's classic protocol, whose members come and go."""

    kafka_share = 1.0
    topics = (grouped_topic(GroupPlan(members=4, polls=20, away_us=SECOND, commits=0.8)),)


class Assigned(ScenarioCluster):
    """Members of KIP-848's protocol, and some of Millrace's, share one group."""

    kafka_share = 1.0
    kafka_member = KafkaConsumerMember
    topics = (
        dataclasses.replace(
            grouped_topic(GroupPlan(members=3, others=1, polls=20, away_us=SECOND, commits=0.8)),
            is_administered=True,
        ),
    )


class Contested(ScenarioCluster):
    """Members of both protocols want the same group."""

    kafka_share = 0.5
    topics = (grouped_topic(GroupPlan(members=2, others=2, polls=10, away_us=2 * SECOND)),)


class Staying(ScenarioCluster):
    """The same, of members that stay: none may lose its place."""

    kafka_share = 1.0
    topics = (grouped_topic(GroupPlan(members=3, stays=3, commits=0.8)),)

    def finish(self) -> Mapping[str, float]:
        """Check that no member lost its place."""
        measures = super().finish()
        if self.ownership.losses:
            raise Violation(f"members lose their places: {self.ownership.losses}")
        return measures


def _slow_clients(scene: Scene) -> Undo | None:
    links = [(name, broker) for name in scene.clients for broker in scene.machines]
    return scene.network.impose(links, Weather(delay_us=40 * MILLISECOND))


def _freeze_copier(scene: Scene) -> Undo | None:
    copiers = [name for name in scene.clients if name.startswith("copier-")]
    machine = scene.clients[scene.dice.choice(copiers)]
    machine.freeze()
    return machine.thaw


SLOW_CLIENTS: Final = Family("F16", "what clients send is slow", _slow_clients, (SECOND, SECOND))
"""So some batches of a burst come before a replica is back in sync, and others after that."""
COPIER_STANDS_STILL: Final = Family(
    "F66", "a copier stands still for longer than its session", _freeze_copier, (SECOND, SECOND)
)

# fmt: off
KAFKA_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("P66: both formats", "leaders are killed, and clients of both kinds write and read",
             Mixed, again("F02", 4, 5, 4, 2), by_day=True, seeds=3, quiet_s=15,
             mutants=["what the leader stamps in Kafka's header is in the producer's checksum",
                      "the offset is not stamped in Kafka's header",
                      "the leader's epoch is not stamped in Kafka's header"]),
    Scenario("P66: append time", "leaders give times to batches of Kafka", Stamped,
             again("F02", 4, 6, 2, 2), seeds=2, quiet_s=15,
             mutants=["Kafka's checksum does not know the leader's time"]),
    Scenario("P43: clients of Kafka", "leaders change, and producers of Kafka are new to them",
             Unknown, [*again("F02", 4, 3, 8, 1.5), *again("F16", 5, 6, 4, 5)], seeds=4,
             quiet_s=15),
    Scenario("K9", "brokers die, and administrators work by Kafka's protocol", Administered,
             [*again("F01", 10, 12, 3, 3), *again("F02", 15, 12, 3, 3)], by_day=True, seeds=4,
             quiet_s=15),
    Scenario("K1", "leaders refuse batches for a moment, and take those behind them", Lacking,
             [(3, SLOW_CLIENTS, 20), *again("F01", 4, 4, 5, 2.2)], seeds=3, quiet_s=10,
             mutants=["by Kafka's protocol no batch is a successor"]),
    Scenario("K4", "brokers are upgraded one after the other, and one goes back", Upgraded,
             [*again(UPGRADED, 8, 6, 3, 2), (27, RESTARTED, 2), (35, RESTARTED, 2)], seeds=2,
             quiet_s=15,
             mutants=["a leader takes Kafka's batches beside brokers that do not know them",
                      "a broker that does not know Kafka's batches comes back to them"]),
    Scenario("T14", "coordinators die, and clients of Kafka write transactions", Transacting,
             again("F02", 5, 6, 3, 3), seeds=3, quiet_s=15,
             mutants=["readers of Kafka are not told what was aborted",
                      "readers of Kafka get what is not decided",
                      "a leader does not ask whether a client of Kafka has taken a partition in",
                      "an end by Kafka's protocol is one of Millrace's"]),
    Scenario("T14: copies", "clients of Kafka copy a topic exactly once; coordinators die, and "
             "copiers stand still", Copying,
             [*again("F02", 5, 9, 2, 3), *again(COPIER_STANDS_STILL, 7, 12, 3, 10)],
             by_day=True, seeds=4, quiet_s=15,
             mutants=["positions by Kafka's protocol need not be taken in",
                      "a transaction by Kafka's protocol has positions of who is not a member any "
                      "more",
                      "clients of Kafka are told positions that wait for a transaction"]),
    Scenario("P61: classic groups", "members come, go and stand still, by Kafka's protocol",
             Classic, again(STANDS_STILL, 8, 16, 2, 10), by_day=True, seeds=3, quiet_s=30,
             mutants=["a classic group begins a generation before all have joined again",
                      "a heartbeat of a classic member does not prolong its session"]),
    Scenario("P61: KIP-848", "members come, go and stand still, by Kafka's protocol and by "
             "Millrace's", Assigned, again(STANDS_STILL, 8, 16, 2, 10), seeds=3, quiet_s=40),
    Scenario("P61: one protocol", "members of both protocols want the same group", Contested,
             [(20, "F17", 1)], seeds=3, quiet_s=30,
             mutants=["members of Kafka's protocol join a group of Millrace's",
                      "members of Millrace's protocol join a group of Kafka's"]),
    Scenario("P59: classic groups", "coordinators of a classic group are killed at any step",
             Staying, again(COORDINATOR, 6, 7, 5, 4), seeds=3, quiet_s=30,
             mutants=["a new coordinator forgets the members of classic groups"]),
)
# fmt: on
