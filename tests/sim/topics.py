"""The topics of a simulated cluster, the load on them, and their clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.checkers.history import Recorder
from tests.sim.clients.kafka.administrator import KafkaAdministrator
from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Client, FinalReader, Load, Marks, Writer
from tests.sim.clients.shared import Application, ApplicationPlan
from tests.sim.clients.transactional import Copier, TransactionalWriter, TransactionPlan
from tests.sim.world import MILLISECOND

from millrace.core.ids import TopicId, TopicPartition

RETENTION: Final = ("retention.ms", "retention.bytes", "retention.records")
"""Retention deletes records only in topics that set one of them."""
Transacting = TransactionalWriter | Application | Copier | KafkaAdministrator


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of the cluster, and the load on it.

    Attributes:
        replication_factor: 0: the cluster's default.
        loads: of its producers, each of which writes to all partitions.
        polls_every_us: the mean pause between two polls.
        reads_followers: whether an additional reader reads from the replica in its zone.
        asks_ends: whether a client asks for its end offsets.
        keeps_positions: whether a client commits positions in it.
        is_explored: whether clients call their whole interface on it.
        is_administered: whether administrators work there by Kafka's protocol, if it is served.
        group: the members of a consumer group that reads it; None: there are none.
        transactions: what writers of transactions do; None: there are none.
        application: what an application of several processes does; None: there is none.
        copies: of which topic members of another group write a copy into it; empty: of none.
        is_trimmed: whether a person deletes records beside its transactions.
        made_at_us: when it is created.
        is_disposable: whether operators delete it, and create another one with its name.
        comes_back: whether operators delete it, and bring it back.
        incarnation: how often they have done so.
    """

    name: str = "t"
    partitions: int = 3
    replication_factor: int = 3
    config: Mapping[str, str] = field(default_factory=dict)
    loads: tuple[Load, ...] = (Load(),)
    polls_every_us: int = 300 * MILLISECOND
    reads_followers: bool = False
    asks_ends: bool = False
    keeps_positions: bool = False
    is_explored: bool = False
    is_administered: bool = False
    group: GroupPlan | None = None
    transactions: TransactionPlan | None = None
    application: ApplicationPlan | None = None
    copies: str = ""
    is_trimmed: bool = False
    made_at_us: int = 0
    is_disposable: bool = False
    comes_back: bool = False
    incarnation: int = 0

    @property
    def is_compacted(self) -> bool:
        """Whether its brokers remove records that others replace."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def is_transactional(self) -> bool:
        """Whether its log has markers."""
        return bool(self.transactions or self.application or self.copies)

    @property
    def modes(self) -> list[str]:
        """What its producers may lose or duplicate, as modes of the checkers."""
        modes = ["assign"]
        if any(load.acks != "all" for load in self.loads):
            modes.append("acks-1")
        if any(load.acks == 0 for load in self.loads):
            modes.append("not-idempotent")
        return modes

    @property
    def gives_up(self) -> bool:
        """Whether its oldest records are deleted."""
        return self.is_trimmed or any(name in self.config for name in RETENTION)


class RunningTopic:
    """A topic that exists, and its clients."""

    def __init__(self, plan: TopicPlan, topic_id: TopicId, first_key: int) -> None:
        self.plan = plan
        self.topic_id = topic_id
        self.recorder = Recorder()
        self.keys = range(first_key, first_key + plan.partitions)
        self.partitions = [TopicPartition(topic_id, number) for number in range(plan.partitions)]
        self.writers: list[Writer] = []
        self.readers: list[Client] = []
        self.transacting: list[Transacting] = []
        self.final: FinalReader | None = None
        self.marks = Marks() if plan.is_compacted else None
        self.untimed: set[int] = set()
        self.is_gone = False
