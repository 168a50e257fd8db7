"""Producers of Kafka that pipeline, against leaders that do not know them: nothing is lost (K1).

The producer is idempotent, as librdkafka's is: it sends batches in their order, several before the
first answer, and repeats in their order those that were not taken. The leader may refuse any for a
moment, as when replicas are lacking, and another one without any state may take its place, as after
the records were deleted by retention. What the producer was told is written must be in the log
once, in the order in which it was sent. A mutant of the listener, which takes no batch for a
successor, breaks that.
"""

import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.fakes.kafka_batches import Record, batch_of

from millrace.broker.kafka.records.succession import Standing, Succession
from millrace.core.errors import (
    DuplicateSequenceError,
    MillraceError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import Offset, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.records import kafka_batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.header import BatchHeader
from millrace.core.replica.log.producer_snapshot import NOT_COUNTED
from millrace.core.replica.log.producer_states import ProducerStates, SequencedBatch

PLACE = TopicPartition(TopicId(bytes(16)), 0)
PRODUCER = 7
IN_FLIGHT_MAX = 5
BATCHES = 60
LIMITS = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20)
STEPS_MAX = 20_000


def header_of(sequence: int) -> BatchHeader:
    batch = batch_of([Record(b"v")], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    return kafka_batch.adopt(PLACE, memoryview(batch), LIMITS)[1]


HEADERS = [header_of(sequence) for sequence in range(BATCHES)]


class Unnoticing(Succession):
    """The mutant."""

    def begin(self, *batch: object) -> Standing:
        del batch
        return Standing.NEXT


@dataclass
class Story:
    """One run."""

    rng: random.Random
    succession: Succession
    states: ProducerStates = field(default_factory=ProducerStates)
    log: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=lambda: deque(range(BATCHES)))
    sent: deque[tuple[int, Standing]] = field(default_factory=deque)
    repeated: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Go on until all batches are written, or none is any more."""
        for _ in range(STEPS_MAX):
            if not self.waiting and not self.sent and not self.repeated:
                return
            step = self.rng.random()
            if step < 0.03:
                self.states = ProducerStates()  # The next leader knows nobody.
            elif step < 0.5:
                self.send()
            else:
                self.answer()

    def send(self) -> None:
        """Send the next batch; what was not taken is repeated when nothing is under way."""
        if self.repeated:
            if not self.sent:
                self.waiting.extendleft(sorted(self.repeated, reverse=True))
                self.repeated.clear()
            return
        if self.waiting and len(self.sent) < IN_FLIGHT_MAX:
            sequence = self.waiting.popleft()
            standing = self.succession.begin(PLACE, PRODUCER, 0, sequence)
            self.sent.append((sequence, standing))

    def answer(self) -> None:
        """The leader judges a batch, and the producer hears of it."""
        if not self.sent:
            return
        sequence, standing = self.sent.popleft()
        try:
            self.judge(sequence, is_successor=standing is not Standing.NEXT)
        except DuplicateSequenceError:
            pass  # librdkafka takes it for written.
        except MillraceError:
            self.repeated.append(sequence)
            return
        self.told.append(sequence)
        self.succession.end(PLACE, PRODUCER, 0, sequence, 1)

    def judge(self, sequence: int, *, is_successor: bool) -> None:
        if self.rng.random() < 0.2:
            raise NotEnoughReplicasError("for a moment")
        header = HEADERS[sequence]
        if self.states.check(header, is_successor=is_successor) is None:
            self.states.update(header, Offset(len(self.log)), WallMs(1))
            self.log.append(sequence)

    @property
    def is_sound(self) -> bool:
        """Whether what the producer was told is in the log, once and in its order."""
        return self.log == sorted(set(self.log)) and set(self.told) <= set(self.log)


@pytest.mark.parametrize("seed", range(100))
def test_what_a_producer_was_told_is_written_is_in_the_log_in_its_order(seed: int) -> None:
    story = Story(random.Random(seed), Succession())
    story.run()
    assert story.is_sound, (story.log, story.told)
    assert story.told == list(range(BATCHES)), "it goes on in the end"


def test_without_that_rule_batches_are_lost_or_out_of_order() -> None:
    stories = [Story(random.Random(seed), Unnoticing()) for seed in range(20)]
    for story in stories:
        story.run()
    assert not all(story.is_sound for story in stories)


# --- A producer that repeats in any order ------------------------------------------------------


class NotCounting(ProducerStates):
    """The mutant: five batches, and all that were before them are in the log."""

    def update(self, batch: SequencedBatch, base_offset: Offset, now: WallMs) -> None:
        super().update(batch, base_offset, now)
        entry = self.entry(ProducerId(PRODUCER))
        assert entry is not None
        self.put(ProducerId(PRODUCER), entry._replace(unbroken=NOT_COUNTED))


@dataclass
class CarelessStory(Story):
    """A producer that repeats what was refused in any order, by one connection after the other.

    Nothing that it does is of use, but it must not be told that a batch is written which is not.
    """

    kind: type[ProducerStates] = ProducerStates
    attempts: int = 20 * BATCHES

    def run(self) -> None:
        while self.attempts and (self.waiting or self.sent or self.repeated):
            step = self.rng.random()
            if step < 0.01:
                self.states = self.kind()
            elif step < 0.05:
                snapshot = self.states.snapshot()
                self.states = self.kind()
                self.states.restore(snapshot)
            elif step < 0.1:
                self.succession = Succession()
                self.repeated += [sequence for sequence, _ in self.sent]
                self.sent.clear()
            elif step < 0.6:
                self.send()
            else:
                self.answer()

    def send(self) -> None:
        if self.repeated and self.rng.random() < 0.5:
            self.rng.shuffle(self.repeated)
            self.waiting.appendleft(self.repeated.pop())
        if self.waiting and len(self.sent) < IN_FLIGHT_MAX:
            self.attempts -= 1
            sequence = self.waiting.popleft()
            self.sent.append((sequence, self.succession.begin(PLACE, PRODUCER, 0, sequence)))


def careless_story(seed: int, kind: type[ProducerStates]) -> CarelessStory:
    story = CarelessStory(random.Random(seed), Succession(), kind(), kind=kind)
    story.run()
    return story


@pytest.mark.parametrize("seed", range(200))
def test_who_repeats_in_any_order_is_never_told_that_what_is_not_in_the_log_is(seed: int) -> None:
    story = careless_story(seed, ProducerStates)
    assert set(story.told) <= set(story.log), (story.log, story.told)
    assert story.told


def test_a_leader_that_does_not_count_takes_what_was_never_written_for_old() -> None:
    stories = [careless_story(seed, NotCounting) for seed in range(200)]
    assert any(not set(story.told) <= set(story.log) for story in stories)


# --- The Java producer, and a change of leaders ----------------------------------------------


class Trusting(Succession):
    """The mutant: what comes by another connection is of no concern."""

    def begin(self, where: object, producer_id: int, epoch: int, sequence: int) -> Standing:
        standing = super().begin(PLACE, producer_id, epoch, sequence)
        return Standing.NEXT if standing is Standing.UNCERTAIN else standing


class Strict(ProducerStates):
    """The mutant: as in Apache Kafka, what is before the last five batches is out of order."""

    def check(self, batch: SequencedBatch, *, is_successor: bool = False) -> Offset | None:
        try:
            return super().check(batch, is_successor=is_successor)
        except DuplicateSequenceError as error:
            raise OutOfOrderSequenceError(error.message) from error


class Leader:
    """A leader, with the one connection of the producer to it."""

    def __init__(
        self,
        rng: random.Random,
        succession: Succession,
        log: list[int],
        states: ProducerStates,
    ) -> None:
        self.rng = rng
        self.succession = succession
        self.states = states
        self.log: list[int] = []
        for sequence in log:
            self.append(sequence)
        self.states.restore(self.states.snapshot())  # It may have restarted since.
        self.leads = True
        self.sent: deque[tuple[int, Standing]] = deque()

    def append(self, sequence: int) -> None:
        self.states.update(HEADERS[sequence], Offset(len(self.log)), WallMs(1))
        self.log.append(sequence)

    def take(self, sequence: int) -> None:
        self.sent.append((sequence, self.succession.begin(PLACE, PRODUCER, 0, sequence)))

    def judge(self, sequence: int, standing: Standing) -> None:
        is_successor = standing is not Standing.NEXT
        if self.states.check(HEADERS[sequence], is_successor=is_successor) is None:
            self.append(sequence)

    def stop(self) -> None:
        """It is replaced. It has appended some batches and answered none of them."""
        self.leads = False
        for sequence, standing in list(self.sent)[: self.rng.randint(0, len(self.sent))]:
            with suppress(MillraceError):
                self.judge(sequence, standing)

    def answer(self) -> tuple[int, MillraceError | None]:
        """Judge the next batch; return it, and why it is not written."""
        sequence, standing = self.sent.popleft()
        try:
            if not self.leads or self.rng.random() < 0.1:
                raise NotEnoughReplicasError("not by this one")
            self.judge(sequence, standing)
        except DuplicateSequenceError:
            pass  # The Java producer takes it for written, too.
        except MillraceError as error:
            return sequence, error
        self.succession.end(PLACE, PRODUCER, 0, sequence, 1)
        return sequence, None


def java_story(
    seed: int, kind: type[Succession], states: type[ProducerStates] = ProducerStates
) -> tuple[list[int], list[int]]:
    """Return the log of the last leader, and what the producer was told is written."""
    rng = random.Random(seed)
    leaders = [Leader(rng, kind(), [], states())]
    known = 0  # The leader that the producer knows.
    fresh, told = deque(range(BATCHES)), list[int]()
    open_, repeated = list[int](), list[int]()  # Sent and not written; to be sent again.
    changes_at = rng.randrange(40)
    for step in range(STEPS_MAX):
        if not fresh and not open_:
            break
        if step == changes_at:
            # What nobody was told may have been copied, or not.
            old = leaders[-1]
            old.stop()
            copied = old.log[: rng.randint(len(told), len(old.log))]
            leaders.append(Leader(rng, kind(), copied, states()))
        choice = rng.random()
        if choice < 0.1:
            known = len(leaders) - 1
        elif choice < 0.55 and len(leaders[known].sent) < IN_FLIGHT_MAX:
            if repeated:
                if repeated[0] == open_[0]:
                    leaders[known].take(repeated.pop(0))
            elif fresh:
                open_.append(fresh.popleft())
                leaders[known].take(open_[-1])
        elif choice > 0.6:
            # The old leader is silent for long.
            asked = leaders[-1] if rng.random() < 0.9 else leaders[0]
            if not asked.sent:
                continue
            sequence, refused = asked.answer()
            if refused is None:
                told.append(sequence)
                open_.remove(sequence)
            else:
                repeated = sorted([*repeated, sequence])
    return leaders[-1].log, told


@pytest.mark.parametrize("seed", range(200))
def test_no_leader_begins_with_what_the_java_producer_sends_before_the_old_one_has_answered(
    seed: int,
) -> None:
    log, told = java_story(seed, Succession)
    assert log == sorted(told) == list(range(BATCHES))


def test_a_leader_that_trusts_another_connection_has_batches_out_of_order() -> None:
    stories = [java_story(seed, Trusting) for seed in range(200)]
    assert any(log != list(range(BATCHES)) for log, _ in stories)
    assert all(set(told) <= set(log) for log, told in stories)
    stories = [java_story(seed, Trusting, NotCounting) for seed in range(200)]
    assert any(not set(told) <= set(log) for log, told in stories), "and some are lost"


def test_a_leader_that_takes_nothing_for_old_refuses_for_ever_what_is_written() -> None:
    """Some are with the old leader, which has passed them on, and more than five with the new."""
    stories = [java_story(seed, Succession, Strict) for seed in range(200)]
    assert all(set(told) <= set(log) for log, told in stories)
    assert any(set(told) < set(log) for log, told in stories)
