"""One partition on several brokers: the replication machines over logs and disks in memory.

Nothing happens by itself. A test writes, flushes, fetches, delivers, drops or repeats messages,
lets time pass, crashes brokers, and lets them learn what the controller decided, in any order;
`settle` does all of it until nothing changes any more. After a step `check` holds what the machines
say against what was ever committed or acknowledged.

The controller is as simple as it can be: it changes one state at a time, takes a fenced broker out
of the in-sync replicas unless it is the last, and elects only from them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from millrace.core.errors import MillraceError, NotLeaderError
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.log.leader_epochs import LeaderEpochs
from millrace.core.log.producer_states import ProducerStates
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import BatchHeader, parse_header
from millrace.core.replication.follower import (
    AdvanceLogStart,
    Append,
    Effect,
    FetchFrom,
    FetchResponse,
    PartitionFollower,
    StartAnew,
    Truncate,
)
from millrace.core.replication.in_sync import BrokerStanding, IsrProposal
from millrace.core.replication.leader import Acks, PartitionLeader, Waiter
from millrace.core.replication.progress import FollowerProgress
from millrace.core.replication.rules import AppendRules, ReplicationConfig

PARTITION = TopicPartition(TopicId(b"t" * 16), 0)
WALL = WallMs(1_000_000)
BATCHES_IN_RESPONSE = 3


@cache
def header_of(records: int, producer_id: int = -1, sequence: int = -1) -> BatchHeader:
    """Return a batch's header as a checking thread hands it over."""
    prepared = prepare(PARTITION, Columns(records, WALL, [b"x"] * records))
    epoch = ProducerEpoch(-1 if producer_id < 0 else 0)
    return parse_header(prepared.finish(ProducerId(producer_id), epoch, sequence))


class Batch(NamedTuple):
    """A batch in a log; `text` stands for its bytes."""

    base_offset: Offset
    next_offset: Offset
    leader_epoch: LeaderEpoch
    text: str


class Log:
    """A replica's log on a disk that may lose what is not flushed."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start_offset = Offset(0)
        self.end_offset = Offset(0)
        self.flushed_offset = Offset(0)

    @property
    def epochs(self) -> LeaderEpochs:
        """Where each leader epoch began."""
        epochs = LeaderEpochs()
        for batch in self.batches:
            epochs.append(batch.leader_epoch, batch.base_offset)
        return epochs

    @property
    def texts(self) -> list[str]:
        """What all batches say."""
        return [batch.text for batch in self.batches]

    def append(self, batch: Batch) -> None:
        assert batch.base_offset == self.end_offset
        self.batches.append(batch)
        self.end_offset = batch.next_offset

    def truncate_to(self, offset: Offset) -> None:
        """End the log there, or where the batch that holds it begins."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        ends = [batch.next_offset for batch in self.batches]
        self.end_offset = max([self.start_offset, *ends])
        self.flushed_offset = min(self.flushed_offset, self.end_offset)

    def start_anew(self, offset: Offset) -> None:
        self.batches = []
        self.start_offset = self.end_offset = self.flushed_offset = offset

    def advance_start(self, offset: Offset) -> None:
        self.batches = [batch for batch in self.batches if batch.next_offset > offset]
        self.start_offset = offset

    def flush(self) -> Offset:
        self.flushed_offset = self.end_offset
        return self.end_offset


@dataclass(eq=False)
class Broker:
    """One broker's process, the machine of its replica, and its disk's queue of work."""

    life: BrokerLife
    log: Log = field(default_factory=Log)
    leader: PartitionLeader | None = None
    follower: PartitionFollower | None = None
    is_up: bool = True
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    known_partition_epoch: int = -1

    @property
    def broker_id(self) -> BrokerId:
        return self.life.broker_id

    @property
    def high_watermark(self) -> Offset:
        """What its machine says; the log's start without one."""
        machine = self.leader or self.follower
        return machine.high_watermark if machine else self.log.start_offset


class Controller:
    """Decides alone and at once."""

    def __init__(self, replicas: int) -> None:
        lives = [BrokerLife(BrokerId(n), BrokerEpoch(n + 1)) for n in range(replicas)]
        self.last_broker_epoch = replicas
        self.standings = {
            life.broker_id: BrokerStanding(life.broker_epoch, can_join=True) for life in lives
        }
        self.state = PartitionState(
            replicas=tuple(life.broker_id for life in lives),
            leader=lives[0].broker_id,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
            isr=tuple(lives),
        )

    def _change(self, *, isr: tuple[BrokerLife, ...], leader: BrokerId) -> None:
        self.state = self.state.successor(leader=leader, isr=isr)

    def _first_live(self, isr: tuple[BrokerLife, ...]) -> BrokerId:
        for life in isr:
            standing = self.standings[life.broker_id]
            if standing.can_join and standing.broker_epoch == life.broker_epoch:
                return life.broker_id
        return NO_BROKER

    def fence(self, broker_id: BrokerId) -> None:
        """Take a broker for dead (P29)."""
        self.standings = self.standings | {
            broker_id: self.standings[broker_id]._replace(can_join=False)
        }
        isr = self.state.isr
        if len(isr) > 1:
            isr = tuple(life for life in isr if life.broker_id != broker_id)
        leader = self.state.leader
        if leader in (broker_id, NO_BROKER):
            leader = self._first_live(isr)
        if (isr, leader) != (self.state.isr, self.state.leader):
            self._change(isr=isr, leader=leader)

    def unfence(self, broker_id: BrokerId) -> None:
        """Take a broker for alive, in the life that it was."""
        self.standings = self.standings | {
            broker_id: self.standings[broker_id]._replace(can_join=True)
        }
        if self.state.leader == NO_BROKER:
            leader = self._first_live(self.state.isr)
            if leader != NO_BROKER:
                self._change(isr=self.state.isr, leader=leader)

    def register(self, broker_id: BrokerId) -> BrokerLife:
        """Begin a broker's next life; its last one leaves the in-sync replicas first (P27)."""
        self.fence(broker_id)
        self.last_broker_epoch += 1
        life = BrokerLife(broker_id, BrokerEpoch(self.last_broker_epoch))
        self.standings = self.standings | {
            broker_id: BrokerStanding(life.broker_epoch, can_join=True)
        }
        if [each.broker_id for each in self.state.isr] == [broker_id]:  # What it flushed is there.
            self._change(isr=(life,), leader=broker_id)
        self.unfence(broker_id)
        return life

    def move(self, broker_id: BrokerId) -> None:
        """Make a live member of the in-sync replicas the leader, unless it is none."""
        standing = self.standings[broker_id]
        life = BrokerLife(broker_id, standing.broker_epoch)
        if standing.can_join and life in self.state.isr and broker_id != self.state.leader:
            self._change(isr=self.state.isr, leader=broker_id)

    def elect_uncleanly(self, broker_id: BrokerId) -> None:
        """Make somebody the leader, whatever is lost with that (P30)."""
        life = BrokerLife(broker_id, self.standings[broker_id].broker_epoch)
        self.state = self.state.successor(leader=broker_id, isr=(life,), is_unclean=True)

    def alter(self, sender: BrokerLife, proposal: IsrProposal) -> bool:
        """Apply a leader's proposal (P19); false proves that it was not applied.

        Raises:
            NotLeaderError: it is outdated, which says nothing about an earlier attempt.
        """
        state = self.state
        if (sender, proposal.leader_epoch, proposal.partition_epoch) != (
            state.leader_life,
            state.leader_epoch,
            state.partition_epoch,
        ):
            raise NotLeaderError("outdated")
        for life in proposal.isr:
            standing = self.standings[life.broker_id]
            if not standing.can_join or standing.broker_epoch != life.broker_epoch:
                return False
        self.state = state.successor(leader=state.leader, isr=proposal.isr, is_recovering=False)
        return True


@dataclass(frozen=True)
class Fetch:
    """A follower's request: its position, and its progress."""

    life: BrokerLife
    position: FetchFrom
    fetch_offset: Offset
    progress: FollowerProgress


@dataclass(frozen=True)
class Fetched:
    """The answer, for that life alone: its connection ends with it."""

    life: BrokerLife
    position: FetchFrom
    response: FetchResponse | None = None
    log_start_offset: Offset | None = None
    """Set when the position is out of range."""


@dataclass(frozen=True)
class Alter:
    """A leader's proposal on its way to the controller."""

    life: BrokerLife
    proposal: IsrProposal


@dataclass(frozen=True)
class Altered:
    """The controller's answer."""

    life: BrokerLife
    proposal: IsrProposal
    was_applied: bool | None
    state: PartitionState


Message = Fetch | Fetched | Alter | Altered


class ReplicatedPartition:
    """See the module.

    Attributes:
        acknowledged: what producers were told is kept, by the first offset.
        failed: what they were told is not, or may not be, with the error.
        committed: what was below anybody's high watermark, by the first offset.
        wire: messages that are on their way.
    """

    def __init__(
        self,
        *,
        replicas: int = 3,
        min_insync_replicas: int = 2,
        durability: Durability = Durability.FSYNC,
        config: ReplicationConfig | None = None,
    ) -> None:
        self.now = MonotonicMs(0)
        self.rules = AppendRules(durability=durability, min_insync_replicas=min_insync_replicas)
        self.config = config or ReplicationConfig(replica_lag_time_max_ms=10_000)
        self.controller = Controller(replicas)
        self.brokers = [Broker(life) for life in self.controller.state.isr]
        self.wire: list[Message] = []
        self.acknowledged: dict[Offset, Batch] = {}
        self.failed: dict[str, MillraceError] = {}
        self.committed: dict[Offset, Batch] = {}
        self._texts: dict[Offset, str] = {}
        self._high_watermarks: dict[tuple[BrokerLife, LeaderEpoch], Offset] = {}
        for broker in self.brokers:
            self.learn(broker)

    # --- What a test does --------------------------------------------------------------------

    def leader_of(self, broker: int) -> PartitionLeader:
        """Return a broker's machine, which is the leader's."""
        machine = self.brokers[broker].leader
        assert machine is not None
        return machine

    def follower_of(self, broker: int) -> PartitionFollower:
        """Return a broker's machine, which is a follower's."""
        machine = self.brokers[broker].follower
        assert machine is not None
        return machine

    def produce(
        self, broker: Broker, text: str, *, records: int = 1, acks: Acks = Acks.ALL
    ) -> None:
        """Append at a leader; whatever becomes of it is noted.

        Raises:
            MillraceError: it was refused.
        """
        leader = broker.leader
        assert leader is not None
        leader.check_epoch(LeaderEpoch(-1))
        waiter = leader.append(header_of(records), acks, text, WALL)
        batch = Batch(waiter.base_offset, Offset(waiter.last_offset + 1), leader.leader_epoch, text)

        def write() -> None:
            broker.log.append(batch)
            if broker.leader is not None:
                self._tell(broker, broker.leader.on_written(batch.next_offset, self.now))

        broker.queue.append(write)

    def write(self, broker: Broker) -> None:
        """Let the disk do all that is queued."""
        while broker.queue:
            broker.queue.popleft()()

    def flush(self, broker: Broker) -> None:
        """Make durable what is written."""
        end_offset = broker.log.flush()
        if broker.leader is not None:
            self._tell(broker, broker.leader.on_flushed(end_offset))
        elif broker.follower is not None:
            broker.follower.on_flushed(end_offset)

    def fetch(self, broker: Broker) -> None:
        """Have a follower ask, and report."""
        follower = broker.follower
        if follower is not None and follower.position is not None:
            position = follower.position
            self.wire.append(Fetch(broker.life, position, follower.next_offset, follower.progress))

    def deliver(self, message: Message) -> None:
        """Let a message arrive; its answer goes on the wire. It is for the caller to remove it."""
        match message:
            case Fetch():
                self._answer_fetch(message)
            case Fetched():
                self._take_fetched(message)
            case Alter():
                self._answer_alter(message)
            case Altered():
                self._take_altered(message)

    def deliver_all(self) -> None:
        """Deliver what is on the wire, in order, and the answers."""
        while self.wire:
            self.deliver(self.wire.pop(0))

    def tick(self, broker: Broker) -> None:
        """Have a leader look at the time."""
        if broker.leader is not None:
            done, proposal = broker.leader.tick(self.now)
            self._tell(broker, done)
            if proposal is not None:
                self.wire.append(Alter(broker.life, proposal))

    def pass_time(self, ms: int, *, step: int = 1000) -> None:
        """Let the time go on, and every leader look at it in steps."""
        end = self.now + ms
        while self.now < end:
            self.now = MonotonicMs(min(self.now + step, end))
            for broker in self.brokers:
                if broker.is_up:
                    self.tick(broker)

    def learn(
        self,
        broker: Broker,
        state: PartitionState | None = None,
        standings: dict[BrokerId, BrokerStanding] | None = None,
    ) -> None:
        """Tell a broker what the controller decided, of now or of an earlier time."""
        state = state or self.controller.state
        standings = standings or self.controller.standings
        if not broker.is_up or state.partition_epoch < broker.known_partition_epoch:
            return
        broker.known_partition_epoch = state.partition_epoch
        if state.leader_life == broker.life and broker.leader is None:
            self._lead(broker, state, standings)
        elif broker.leader is not None:
            self._tell(broker, broker.leader.on_state(state, standings, self.now))
            if broker.leader.is_resigned:
                self._follow(broker)
        elif broker.follower is None:
            self._follow(broker)
        if broker.follower is not None:
            self._perform(broker, broker.follower.on_state(state))

    def learn_all(self) -> None:
        """Tell everybody."""
        for broker in self.brokers:
            self.learn(broker)

    def crash(self, broker: Broker, *, power: bool = False) -> None:
        """End a process; without power the disk forgets what was not flushed."""
        broker.is_up = False
        broker.leader = broker.follower = None
        broker.queue.clear()
        if power:
            broker.log.truncate_to(broker.log.flushed_offset)
        else:
            broker.log.flush()

    def restart(self, broker: Broker) -> None:
        """Begin a process's next life."""
        assert not broker.is_up
        broker.life = self.controller.register(broker.broker_id)
        broker.log.flush()  # What recovery kept.
        broker.is_up = True
        broker.known_partition_epoch = -1
        self.learn(broker)

    def replicate(self, *brokers: int) -> None:
        """Have followers fetch, write, flush and report until they have what their leader has."""
        chosen = [self.brokers[n] for n in brokers] or self.brokers
        for _ in range(10):
            for broker in chosen:
                self.fetch(broker)
            self.deliver_all()
            for broker in self.brokers:
                self.write(broker)
                self.flush(broker)

    def settle(self) -> None:
        """End all faults, and go on until every replica is in sync and holds the same."""
        for broker in self.brokers:
            if not broker.is_up:
                self.restart(broker)
            self.controller.unfence(broker.broker_id)
        self.wire.clear()
        for _ in range(60):
            self.learn_all()
            self.replicate()
            self.pass_time(1000)
            self.deliver_all()
            self.check()
            for broker in self.brokers:  # Whatever was lost with a broken connection.
                self._give_up_proposals(broker)
            if self._is_settled():
                return
        raise AssertionError(f"it did not settle: {self}")

    def _give_up_proposals(self, broker: Broker) -> None:
        if broker.leader is not None and broker.leader.proposal is not None:
            broker.leader.on_isr_unknown(broker.leader.proposal, self.now)

    def _is_settled(self) -> bool:
        first = self.brokers[0].log
        return (
            len(self.controller.state.isr) == len(self.brokers)
            and all(broker.log.batches == first.batches for broker in self.brokers)
            and all(broker.high_watermark == first.end_offset for broker in self.brokers)
        )

    def __str__(self) -> str:
        return "\n".join(
            [str(self.controller.state)]
            + [
                f"{broker.life} {'leads' if broker.leader else 'follows'} "
                f"high_watermark={broker.high_watermark} {broker.log.batches}"
                for broker in self.brokers
            ]
        )

    # --- What must always be true --------------------------------------------------------------

    def check(self) -> None:
        """Hold everything against what was ever committed or acknowledged."""
        for broker in self.brokers:
            if not broker.is_up:
                continue
            self._check_high_watermark(broker)
            for batch in broker.log.batches:
                if batch.next_offset <= broker.high_watermark:
                    known = self.committed.setdefault(batch.base_offset, batch)
                    assert known == batch, f"diverged below the high watermark: {known}, {batch}"
        for offset, batch in self.acknowledged.items():
            assert self.committed.get(offset) == batch, f"acknowledged, not committed: {batch}"
        for broker in self.brokers:
            leader = broker.leader
            if leader and leader.leader_epoch == self.controller.state.leader_epoch:
                missing = set(self.acknowledged.values()) - set(broker.log.batches)
                assert not missing, f"acknowledged, not with the leader: {missing}"

    def _check_high_watermark(self, broker: Broker) -> None:
        leader = broker.leader
        if leader is not None:
            assert leader.high_watermark <= leader.durable_offset <= leader.written_offset
            assert leader.written_offset == broker.log.end_offset
            key = (broker.life, leader.leader_epoch)
            before = self._high_watermarks.get(key, Offset(0))
            assert leader.high_watermark >= before, "the high watermark went back"
            self._high_watermarks[key] = leader.high_watermark
        follower = broker.follower
        if follower is not None:
            assert follower.high_watermark <= follower.written_offset <= follower.next_offset
            assert follower.written_offset == broker.log.end_offset

    # --- What happens between ------------------------------------------------------------------

    def _lead(
        self,
        broker: Broker,
        state: PartitionState,
        standings: dict[BrokerId, BrokerStanding],
    ) -> None:
        self.write(broker)
        high_watermark = broker.high_watermark
        broker.follower = None
        log = broker.log
        broker.leader = PartitionLeader(
            PARTITION,
            broker.life,
            state,
            ProducerStates(),
            self.rules,
            next_offset=log.end_offset,
            written_offset=log.end_offset,
            flushed_offset=log.flushed_offset,
            high_watermark=high_watermark,
            standings=standings,
            config=self.config,
            now=self.now,
        )

    def _follow(self, broker: Broker) -> None:
        self.write(broker)
        high_watermark = broker.high_watermark
        known_in = broker.leader.leader_epoch if broker.leader else NO_LEADER_EPOCH
        broker.leader = None
        log = broker.log
        broker.follower = PartitionFollower(
            PARTITION,
            log.epochs,
            log_start_offset=log.start_offset,
            log_end_offset=log.end_offset,
            flushed_offset=log.flushed_offset,
            high_watermark=high_watermark,
            high_watermark_epoch=known_in,
            config=self.config,
        )

    def _tell(self, broker: Broker, done: list[Waiter]) -> None:
        for waiter in done:
            text = str(waiter.owner)
            if waiter.error is not None:
                self.failed[text] = waiter.error
                continue
            (batch,) = (each for each in broker.log.batches if each.text == text)
            if waiter.acks is Acks.ALL:
                self.acknowledged[batch.base_offset] = batch

    def _perform(self, broker: Broker, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append() | Truncate() | StartAnew() | AdvanceLogStart():
                    broker.queue.append(self._work(broker, effect))
                case _:  # Positions are asked for by `fetch`.
                    pass

    def _work(
        self, broker: Broker, effect: Append | Truncate | StartAnew | AdvanceLogStart
    ) -> Callable[[], None]:
        log = broker.log

        def work() -> None:
            follower = broker.follower
            assert follower is not None
            effects: list[Effect] = []
            match effect:
                case Append(batches):
                    for batch in batches:
                        assert isinstance(batch, Batch)
                        log.append(batch)
                    effects = follower.on_written(log.end_offset)
                case Truncate(end_offset):
                    log.truncate_to(end_offset)
                    effects = follower.on_truncated(log.end_offset)
                case StartAnew(start_offset):
                    log.start_anew(start_offset)
                    effects = follower.on_started_anew(start_offset)
                case AdvanceLogStart(start_offset):
                    log.advance_start(start_offset)
            self._perform(broker, effects)

        return work

    def _alive(self, life: BrokerLife) -> Broker | None:
        broker = self.brokers[life.broker_id]
        return broker if broker.is_up and broker.life == life else None

    def _answer_fetch(self, fetch: Fetch) -> None:
        position = fetch.position
        broker = self.brokers[position.leader]
        if broker.leader is None:
            if broker.is_up:
                self.wire.append(Fetched(fetch.life, position))
            return
        leader, log = broker.leader, broker.log
        try:
            self._tell(
                broker,
                leader.on_follower_fetch(
                    fetch.life,
                    position.leader_epoch,
                    fetch.progress,
                    log.epochs,
                    self.now,
                    log_start_offset=log.start_offset,
                ),
            )
            if fetch.fetch_offset < log.start_offset:
                self.wire.append(Fetched(fetch.life, position, log_start_offset=log.start_offset))
                return
            diverging = leader.diverging_follower(
                fetch.life,
                position.fetch_offset,
                position.last_fetched_epoch,
                log.epochs,
                log.start_offset,
            )
        except MillraceError:
            self.wire.append(Fetched(fetch.life, position))
            return
        found = [batch for batch in log.batches if batch.base_offset >= fetch.fetch_offset]
        response = FetchResponse(
            position,
            fetch.fetch_offset,
            leader.high_watermark,
            log.start_offset,
            () if diverging else tuple(found[:BATCHES_IN_RESPONSE]),
            diverging=diverging,
        )
        self.wire.append(Fetched(fetch.life, position, response))

    def _take_fetched(self, fetched: Fetched) -> None:
        broker = self._alive(fetched.life)
        if broker is None or broker.follower is None:
            return
        if fetched.response is not None:
            effects = broker.follower.on_fetch_response(fetched.response)
        elif fetched.log_start_offset is not None:
            effects = broker.follower.on_out_of_range(fetched.position, fetched.log_start_offset)
        else:
            effects = broker.follower.on_fetch_failed(fetched.position)
        self._perform(broker, effects)

    def _answer_alter(self, alter: Alter) -> None:
        was_applied: bool | None
        try:
            was_applied = self.controller.alter(alter.life, alter.proposal)
        except NotLeaderError:
            was_applied = None
        self.wire.append(Altered(alter.life, alter.proposal, was_applied, self.controller.state))

    def _take_altered(self, altered: Altered) -> None:
        broker = self._alive(altered.life)
        if broker is None or broker.leader is None:
            return
        leader, proposal = broker.leader, altered.proposal
        if altered.was_applied is None:
            leader.on_isr_unknown(proposal, self.now)
        elif altered.was_applied:
            broker.known_partition_epoch = max(
                broker.known_partition_epoch, altered.state.partition_epoch
            )
            self._tell(broker, leader.on_isr_accepted(proposal, altered.state, self.now))
        else:
            self._tell(broker, leader.on_isr_refused(proposal, self.now))
