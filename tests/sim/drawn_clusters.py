"""The clusters of the swarm: a seed draws their brokers, topics and settings."""

import dataclasses
import random
from typing import Final

from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Load
from tests.sim.clients.shared import ApplicationPlan
from tests.sim.clients.transactional import TransactionPlan
from tests.sim.cluster import SimulatedCluster
from tests.sim.faults.catalogue import FAMILIES
from tests.sim.faults.family import Family
from tests.sim.faults.operators import TIER_CHANGE
from tests.sim.faults.processes import MOVE_CUT
from tests.sim.machines.api_server import open_kubernetes_store
from tests.sim.settings import REPLICATION, TRANSACTIONS, Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, World

from millrace.core.coordinator.transactions.config import EPOCH_MAX
from millrace.core.settings import INT64_MAX

_EPOCHS_MAX: Final = (2, 2, EPOCH_MAX)
"""With 2, epochs run out all the time (T13). The rest keeps its producer ids, as outside of tests:
a late message is then refused by its epoch alone, and not because the id is another one."""


def _families(*fault_ids: str) -> tuple[Family, ...]:
    return tuple(FAMILIES[fault_id] for fault_id in fault_ids)


ALL_FAMILIES: Final = _families(
    # Processes end, are paused, and start again.
    "F01", "F02", "F03", "F08", "F09", "F10", "F38", "F39", "F47", "F49",
    # The network fails in every way, and so do clocks.
    "F11", "F12", "F13", "F14", "F15", "F16", "F17", "F18", "F19", "F20", "F21", "F34",
    # Connections of bytes, too.
    "F80", "F81", "F82",
    # Machines lose power, and disks are slow, full, or fail.
    "F04", "F05", "F06", "F07", "F22", "F23", "F24", "F26", "F27", "F33",
    # The store is unavailable, slow or throttled, or loses answers.
    "F40", "F42", "F43",
    # One machine gets an empty disk, or damaged files.
    "F25", "F28", "F29", "F30", "F31", "F32", "F36",
    # Operators move replicas, change, delete and create topics, and drain brokers.
    "F48", "F69", "F70", "F71", "F72", "F73", "F74",
)  # fmt: skip


class BrokerCluster(SimulatedCluster):
    """A cluster of random shape under all of these faults, as the swarm draws them."""

    families = ALL_FAMILIES
    kafka_share = None

    def __init__(self, world: World) -> None:
        self.shape(world)
        super().__init__(world)

    def shape(self, world: World) -> None:
        """Draw the brokers and the topics."""
        dice = world.random("shape")
        self.brokers = dice.choice((3, 3, 4, 5))
        self.topics = [_drawn_topic(dice, f"t{number}") for number in range(2)]
        if world.random("administrators").random() < 0.5:
            self.topics[0] = dataclasses.replace(self.topics[0], is_administered=True)
        if dice.random() < 0.5:
            self.topics.append(disposable_topic(dice))
        if world.random("back").random() < 0.5:
            self.topics.append(returning_topic(world.random("returning topic")))
        if world.random("compaction").random() < 0.4:
            self.topics.append(compacted_topic(world.random("compacted topic")))
        if world.random("transactions").random() < 0.4:
            self.topics += transactional_topics(world.random("transactional topics"))
        self.families = ALL_FAMILIES
        if is_tiered := world.random("tiers").random() < 0.3:
            self.topics.append(tiered_topic(world.random("tiered topic")))
            self.families = (*ALL_FAMILIES, MOVE_CUT, TIER_CHANGE)
        if world.random("store").random() < 0.5:
            self.new_store = open_kubernetes_store
        self.settings = Settings(
            replication=dataclasses.replace(
                REPLICATION, replica_lag_time_max_ms=dice.choice((1_000, 3_000, 10_000))
            ),
            cleaner_dedupe_buffer_size=world.random("map").choice((2 << 10, 64 << 10)),
            transactions=dataclasses.replace(
                TRANSACTIONS, epoch_max=world.random("epochs").choice(_EPOCHS_MAX)
            ),
            has_hdd=is_tiered,
            cleaner_io_max_bytes_per_second=world.random("cleaners").choice((-1, -1, 10_000)),
        )


def drawn_config(dice: random.Random) -> dict[str, str]:
    """Draw the settings that matter to replication."""
    config = {
        "min.insync.replicas": dice.choice(("1", "2", "2")),
        "durability": dice.choice(("fsync", "fsync", "replicated")),
    }
    kept = dice.choice(("all", "all", "some", "new"))
    if kept == "some":
        config["retention.bytes"] = dice.choice(("10000", "40000"))
    elif kept == "new":  # By the leader's clock, which may jump.
        config["message.timestamp.type"] = "LogAppendTime"
        config["retention.ms"] = dice.choice(("20000", "90000"))
    return config


def _drawn_topic(dice: random.Random, name: str) -> TopicPlan:
    patient = Load(every_us=dice.choice((100, 300, 1000)) * MILLISECOND, burst_max=5)
    impatient = Load(every_us=300 * MILLISECOND, is_patient=False)
    return TopicPlan(
        name=name,
        partitions=dice.choice((1, 2, 3)),
        config=drawn_config(dice),
        loads=dice.choice(
            (
                (patient,),
                (patient, impatient),
                (patient, patient),
                (patient, impatient, Load(every_us=300 * MILLISECOND, acks=1)),
                (patient, Load(every_us=300 * MILLISECOND, acks=0)),
            )
        ),
        reads_followers=dice.random() < 0.5,
        asks_ends=dice.random() < 0.5,
        keeps_positions=dice.random() < 0.3,
        is_explored=dice.random() < 0.4,
        group=_drawn_group(dice.choice((0, 2, 3))),
    )


def _drawn_group(members: int) -> GroupPlan | None:
    return GroupPlan(members=members) if members else None


def disposable_topic(dice: random.Random) -> TopicPlan:
    """Draw a topic that operators delete and create again."""
    return TopicPlan(
        name="again",
        partitions=1,
        config=drawn_config(dice),
        loads=(Load(every_us=400 * MILLISECOND, burst_max=2),),
        transactions=_some_transactions(dice),
        is_disposable=True,
    )


def returning_topic(dice: random.Random) -> TopicPlan:
    """Draw a topic that operators delete and bring back."""
    return TopicPlan(
        name="back",
        partitions=dice.choice((1, 2)),
        config={
            "min.insync.replicas": dice.choice(("1", "2", "2")),
            "durability": dice.choice(("fsync", "fsync", "replicated")),
        },
        loads=(Load(every_us=200 * MILLISECOND, burst_max=4),),
        transactions=_some_transactions(dice),
        comes_back=True,
    )


def compacted_topic(dice: random.Random) -> TopicPlan:
    """Draw a topic whose brokers remove records that others replace."""
    patient = Load(every_us=dice.choice((200, 600, 2000)) * MILLISECOND)
    impatient = Load(every_us=300 * MILLISECOND, is_patient=False)
    return TopicPlan(
        name="compacted",
        partitions=dice.choice((1, 2)),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": dice.choice(("0", "0.3")),
            "delete.retention.ms": dice.choice(("0", "3000", "60000")),
            "min.compaction.lag.ms": dice.choice(("0", "0", "4000")),
            "max.compaction.lag.ms": dice.choice((str(INT64_MAX), "15000")),
            "segment.ms": dice.choice(("2000", "10000")),
            "min.insync.replicas": dice.choice(("1", "2", "2")),
            "durability": dice.choice(("fsync", "fsync", "replicated")),
        },
        loads=dice.choice(((patient,), (patient, impatient))),
        reads_followers=dice.random() < 0.5,
        asks_ends=dice.random() < 0.5,
        transactions=_some_transactions(dice),
    )


def _some_transactions(dice: random.Random) -> TransactionPlan | None:
    """Draw what writers of transactions do in a topic that is there for something else."""
    plan = _drawn_transactions(dice)
    return plan if dice.random() < 0.4 else None


def _drawn_transactions(dice: random.Random) -> TransactionPlan:
    return TransactionPlan(
        writers=dice.choice((1, 2)),
        every_us=dice.choice((100, 300, 1000)) * MILLISECOND,
        timeout_ms=dice.choice((3_000, 6_000)),
        reads=dice.choice((0, 0.3, 0.8)),
        has_operator=dice.random() < 0.5,
    )


def transactional_topics(dice: random.Random) -> list[TopicPlan]:
    """Draw a topic with transactions, and one into which it is copied, or of which records are
    deleted."""
    config = {
        "min.insync.replicas": dice.choice(("1", "2", "2")),
        "durability": dice.choice(("fsync", "fsync", "replicated")),
    }
    if dice.random() < 0.3:
        config |= {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": dice.choice(("0", "3000")),
            "segment.ms": "2000",
        }
    comes_back = dice.random() < 0.3
    partitions = dice.choice((1, 2, 3))
    plain = Load(every_us=dice.choice((600, 2000)) * MILLISECOND)
    source = TopicPlan(
        name="transactional",
        partitions=partitions,
        config=config,
        loads=(plain,) if dice.random() < 0.5 else (),
        transactions=_drawn_transactions(dice),
        application=ApplicationPlan() if dice.random() < 0.5 else None,
        reads_followers=dice.random() < 0.5,
        comes_back=comes_back,
    )
    if dice.random() < 0.5:  # Nothing is copied, so records may go.
        if not (source.is_compacted or comes_back):
            kept = {"retention.bytes": "10000"} if dice.random() < 0.3 else {}
            is_trimmed = dice.random() < 0.7
            source = dataclasses.replace(source, config=config | kept, is_trimmed=is_trimmed)
        return [source]
    copy = TopicPlan(
        name="copy",
        partitions=partitions,
        config=config,
        loads=(),
        copies=source.name,
        comes_back=comes_back,
    )
    return [source, copy]


def tiered_topic(dice: random.Random) -> TopicPlan:
    """Draw a topic whose closed segments move to an HDD, and come back."""
    compaction = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    return TopicPlan(
        name="tiered",
        partitions=dice.choice((1, 2)),
        config={
            "media": "tiered",
            "local.retention.ms": dice.choice(("0", "0", "5000")),
            "segment.ms": dice.choice(("1000", "4000")),
            **(compaction if dice.random() < 0.3 else drawn_config(dice)),
        },
        loads=(Load(every_us=dice.choice((100, 300, 1000)) * MILLISECOND, burst_max=3),),
        polls_every_us=300 * MILLISECOND,
        reads_followers=dice.random() < 0.5,
        asks_ends=dice.random() < 0.5,
    )
