"""The sender machine against leaders that drop, repeat, delay, refuse, and lose what they may.

Hypothesis chooses what happens; leaders keep the rules of P6, P42 and P43 and nothing else. One
that is elected may lack what nobody was told of, and another that has it may be elected instead,
until something is committed or they have compared their logs.
Whatever happens: a batch is in the log at most once, an acknowledged one is there exactly once,
one that failed with `appended=NO` is not, and batches of a partition are in the order sent.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.effects import (
    AllocateProducerId,
    Answer,
    Complete,
    Disconnect,
    Refusal,
    Transmit,
)
from millrace.core.client.producer.sender import Sender, SenderConfig
from millrace.core.client.routing.router import Connect, RefreshMetadata, Router
from millrace.core.errors import (
    Appended,
    DuplicateSequenceError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import (
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

PLACES = [TopicPartition(TopicId(b"t" * 16), number) for number in range(2)]
BROKER = BrokerId(1)


@dataclass
class Attempt:
    """A batch as it was on the wire: its numbers may change afterwards."""

    batch: ProducerBatch
    producer_id: int
    producer_epoch: int
    first: int
    last: int
    is_successor: bool
    leader_epoch: int


@dataclass
class Log:
    """One partition: the rules that producers rely on."""

    attempts: list[Attempt] = field(default_factory=list)
    committed: int = 0
    """How many of them."""
    rival: "Log | None" = None
    """What another replica has that may be elected."""
    batches: list[ProducerBatch] = field(default_factory=list)
    end_offset: int = 0
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)

    def begun(self, count: int) -> "Log":
        """Return the log of one who has only so many of the batches."""
        log = Log()
        for attempt in self.attempts[:count]:
            log.append(attempt)
        log.committed = self.committed
        return log

    def commit(self) -> None:
        self.committed = len(self.attempts)
        self.rival = None

    def append(self, attempt: Attempt) -> int:
        try:
            return self._append(attempt)
        except OutOfOrderSequenceError as gap:
            if self.rival is not None:
                raise NotEnoughReplicasError("the rival may have it") from gap
            raise

    def _append(self, attempt: Attempt) -> int:
        epoch, recent = self.producers.get(attempt.producer_id, (-1, deque(maxlen=5)))
        if attempt.producer_epoch < epoch:
            raise InvalidProducerEpochError("an older epoch")
        if attempt.producer_epoch > epoch:
            if epoch >= 0 and attempt.first != 0:
                raise OutOfOrderSequenceError("a new epoch begins at 0")
            if epoch < 0 and attempt.is_successor:
                raise OutOfOrderSequenceError("the batch before it is missing")
            recent = deque(maxlen=5)
        else:
            for first, last, base in recent:
                if (first, last) == (attempt.first, attempt.last):
                    return base
            if attempt.last < recent[0][0]:
                raise DuplicateSequenceError("older than what is remembered")
            if attempt.first != recent[-1][1] + 1:
                raise OutOfOrderSequenceError(f"{attempt.first} after {recent[-1][1]}")
        base = self.end_offset
        recent.append((attempt.first, attempt.last, base))
        self.producers[attempt.producer_id] = (attempt.producer_epoch, recent)
        self.attempts.append(attempt)
        self.batches.append(attempt.batch)
        self.end_offset += attempt.batch.record_count
        return base


class LossyBroker(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.sender = Sender(
            SenderConfig(
                acks=-1,
                request_timeout_ms=1_000,
                delivery_timeout_ms=20_000,
                request_bytes_max=300,
                requests_in_flight_max=5,
                leader_silence_ms=2_000,
            ),
            Router(100, 1_000, 300_000, MonotonicMs(0)),
        )
        self.logs = {place: Log() for place in PLACES}
        self.leader_epoch = 0
        self.order: dict[int, int] = {}
        self.connection = 0
        self.under_way: dict[int, deque[tuple[int, list[Attempt]]]] = {}
        """Requests by connection, in order; those of broken ones may still arrive."""
        self.answers: list[tuple[int, int, list[Answer]]] = []
        self.done: list[ProducerBatch] = []
        self.next_id = 100
        self.is_connecting = False
        self.must_look_up = False

    def step(self) -> None:
        for effect in self.sender.poll(MonotonicMs(self.now)):
            match effect:
                case Transmit():
                    attempts = [
                        Attempt(
                            batch,
                            batch.producer_id,
                            batch.producer_epoch,
                            batch.base_sequence,
                            batch.base_sequence + batch.record_count - 1,
                            batch.is_successor,
                            leader_epoch,
                        )
                        for batch, leader_epoch in effect.batches
                    ]
                    self.under_way[self.connection].append((effect.correlation_id, attempts))
                case Complete():
                    self.done.append(effect.batch)
                case Connect():
                    self.is_connecting = True
                case Disconnect():
                    self.connection = 0
                case RefreshMetadata():
                    self.must_look_up = True
                case AllocateProducerId():
                    self.next_id += 1
                    self.sender.on_producer_id(ProducerId(self.next_id))
                    self.step()

    @rule(place=st.sampled_from(PLACES), counts=st.lists(st.integers(1, 3), min_size=1, max_size=7))
    def send(self, place: TopicPartition, counts: list[int]) -> None:
        for count in counts:
            batch = ProducerBatch("t", place, MonotonicMs(self.now), record_count=count, size=100)
            self.order[id(batch)] = len(self.order)
            self.sender.on_batches([batch])
        self.step()

    @precondition(lambda self: self.must_look_up)
    @rule()
    def look_up(self) -> None:
        self.must_look_up = False
        leader = Leader(BROKER, LeaderEpoch(self.leader_epoch))
        self.sender.on_leaders(dict.fromkeys(PLACES, leader))
        self.sender.on_refreshed(MonotonicMs(self.now))
        self.step()

    @precondition(lambda self: self.is_connecting)
    @rule(works=st.booleans())
    def connect(self, works: bool) -> None:
        self.is_connecting = False
        if works:
            self.connection = len(self.under_way) + 1
            self.under_way[self.connection] = deque()
            self.sender.on_connected(BROKER)
        else:
            self.sender.on_disconnected(BROKER, "refused", MonotonicMs(self.now))
        self.step()

    @precondition(lambda self: any(self.under_way.values()))
    @rule(
        data=st.data(),
        refusal=st.sampled_from([None, None, None, NotEnoughReplicasError, InvalidTimestampError]),
        in_doubt=st.booleans(),
        is_answered=st.booleans(),
    )
    def arrive(
        self,
        data: st.DataObject,
        refusal: type[MillraceError] | None,
        in_doubt: bool,
        is_answered: bool,
    ) -> None:
        """A request reaches the broker, also when its connection is long gone."""
        connection = data.draw(st.sampled_from([c for c, r in self.under_way.items() if r]))
        self.deliver(connection, refusal, in_doubt=in_doubt, is_answered=is_answered)

    def deliver(
        self,
        connection: int,
        refusal: type[MillraceError] | None = None,
        *,
        in_doubt: bool = False,
        is_answered: bool = True,
    ) -> None:
        correlation_id, attempts = self.under_way[connection].popleft()
        answers: list[Answer] = []
        for attempt in attempts:
            error: MillraceError
            try:
                if refusal is not None:
                    raise refusal("as it happens")
                base = self.append(attempt)
                if in_doubt and len(attempts) == 1:
                    raise NotEnoughReplicasAfterAppendError("appended, but too few replicas")
                if is_answered:
                    self.logs[attempt.batch.topic_partition].commit()
                answers.append(Acknowledged(Offset(base), WallMs(-1)))
            except MillraceError as raised:
                error = raised
                answers.append(Refusal(error, error.retriable))
        if is_answered:
            self.answers.append((connection, correlation_id, answers))

    def append(self, attempt: Attempt) -> int:
        if attempt.leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"the epoch is {self.leader_epoch} now")
        return self.logs[attempt.batch.topic_partition].append(attempt)

    @rule(lost=st.integers(0, 3))
    def elect(self, lost: int) -> None:
        """Another replica leads; it may lack what is not committed, and its rival have it."""
        self.leader_epoch += 1
        for place, log in self.logs.items():
            kept = log.begun(max(log.committed, len(log.attempts) - lost))
            kept.rival = log
            self.logs[place] = kept

    @precondition(lambda self: any(log.rival for log in self.logs.values()))
    @rule()
    def elect_rival(self) -> None:
        self.leader_epoch += 1
        for place, log in self.logs.items():
            if log.rival is not None:
                rival, log.rival = log.rival, None
                rival.rival = log
                self.logs[place] = rival

    @rule()
    def compare_logs(self) -> None:
        """All who may lead have what the leader has, and nothing else."""
        for log in self.logs.values():
            log.rival = None

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """An answer comes back, in any order; of a broken connection never."""
        self.hand_back(data.draw(st.integers(0, len(self.answers) - 1)))

    def hand_back(self, index: int = 0) -> None:
        connection, correlation_id, answers = self.answers.pop(index)
        if connection == self.connection:
            now = MonotonicMs(self.now)
            self.sender.on_answer(BROKER, correlation_id, answers, now)
            self.step()

    @precondition(lambda self: self.connection)
    @rule()
    def break_connection(self) -> None:
        self.connection = 0
        self.sender.on_disconnected(BROKER, "reset", MonotonicMs(self.now))
        self.step()

    @rule(ms=st.sampled_from([1, 100, 1_000, 7_000]))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.step()

    @invariant()
    def every_batch_is_there_once_and_in_order(self) -> None:
        for log in self.logs.values():
            places = [self.order[id(batch)] for batch in log.batches]
            assert len(set(places)) == len(places), "doubled"
            assert places == sorted(places), "out of order"

    @invariant()
    def outcomes_are_true(self) -> None:
        for batch in self.done:
            log = self.logs[batch.topic_partition]
            is_there = any(other is batch for other in log.batches)
            if isinstance(batch.outcome, Acknowledged):
                assert is_there, "acknowledged and lost"
                before = 0
                for other in log.batches:
                    if other is batch:
                        break
                    before += other.record_count
                assert batch.outcome.base_offset == before
            elif isinstance(batch.outcome, MillraceError):
                assert not is_there or batch.outcome.appended is Appended.MAYBE, "NO, but there"
        assert len({id(batch) for batch in self.done}) == len(self.done)

    def teardown(self) -> None:
        """Once nothing fails any more, everything gets its outcome."""
        self.compare_logs()
        for _ in range(200):
            if not self.sender.unfinished_count:
                break
            if self.must_look_up:
                self.look_up()
            if self.is_connecting:
                self.connect(True)
            while any(self.under_way.values()):
                connection = next(c for c, requests in self.under_way.items() if requests)
                correlation_id, attempts = self.under_way[connection].popleft()
                answers: list[Answer] = []
                for attempt in attempts:
                    try:
                        base = self.append(attempt)
                        self.logs[attempt.batch.topic_partition].commit()
                        answers.append(Acknowledged(Offset(base), WallMs(-1)))
                    except MillraceError as error:
                        answers.append(Refusal(error, error.retriable))
                self.answers.append((connection, correlation_id, answers))
            while self.answers:
                connection, correlation_id, answers = self.answers.pop(0)
                if connection == self.connection:
                    now = MonotonicMs(self.now)
                    self.sender.on_answer(BROKER, correlation_id, answers, now)
                    self.step()
            self.now += 200
            self.step()
        assert not self.sender.unfinished_count
        self.every_batch_is_there_once_and_in_order()
        self.outcomes_are_true()


TestLossyBroker = LossyBroker.TestCase
TestLossyBroker.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def test_what_a_rival_has_is_not_sent_again_under_another_number() -> None:
    """The leader lacks two batches, the first expires, and another leads that has both."""
    run = LossyBroker()
    place = PLACES[0]

    def look_up_and_connect() -> None:
        if run.must_look_up:
            run.look_up()
        if run.is_connecting:
            run.connect(True)

    run.send(place, [1])
    look_up_and_connect()
    run.deliver(1)
    run.hand_back()
    run.send(place, [1])
    run.wait(7_000)  # Less than a leader may be silent, and more than its answer may take.
    run.wait(100)
    look_up_and_connect()
    run.send(place, [1])
    for _ in range(2):
        run.deliver(run.connection, is_answered=False)
    run.break_connection()
    run.elect(2)
    for _ in range(2):
        run.wait(7_000)
    assert len(run.done) == 2, "the first of the two has expired"
    look_up_and_connect()
    for is_answered in (True, False):  # Refused, and perhaps appended under another number.
        run.deliver(run.connection, is_answered=is_answered)
        while run.answers:
            run.hand_back()
        run.wait(1_000)
    run.break_connection()
    run.elect_rival()
    run.teardown()
    assert len(run.logs[place].batches) == 3
