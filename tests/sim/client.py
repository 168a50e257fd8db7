"""Simulated clients: exact and small. They record what they did and saw for `tests.checkers`.

- A `Producer` sends bursts of batches to one partition. A patient one is idempotent and repeats a
  burst until all of it is acknowledged; an impatient one tries once, says what it was told, and
  goes on; one that wants no acknowledgement knows nothing.
- A `Consumer` polls one partition from its beginning on, and checks with every fetch that what it
  has read is still a prefix of the leader's log. It may read from followers, too.
- An `EndReader` asks where the log ends.

They look for leaders by asking any broker, after every refusal and every silence.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from tests.checkers.history import FAIL, INFO, INVOKE, OK, Op, Recorder, Send
from tests.sim.messages import (
    AskEnd,
    AskLeaders,
    Batches,
    End,
    Leaders,
    Produce,
    Produced,
    ProduceStream,
    Read,
)
from tests.sim.network import (
    Network,
    NetworkEvent,
    Received,
    Stream,
    StreamEnded,
    StreamReceived,
)
from tests.sim.world import MILLISECOND, Event, Violation, World

from millrace.core.errors import (
    Appended,
    CorruptBatchError,
    MillraceError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RetriableError,
    StorageError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TOPIC_ID_BYTES,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import PreparedBatch, open_batch, prepare, walk
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replication.leader import Acks

RETRY_US: Final = 400 * MILLISECOND
BACKOFF_US: Final = 50 * MILLISECOND

_VALUE_BYTES: Final = 8
_NOWHERE: Final = TopicPartition(TopicId(bytes(TOPIC_ID_BYTES)), 0)
_VALUES_OF_EACH: Final = 10**9
_LIVES_OF_EACH: Final = 10**6


@dataclass(frozen=True, slots=True)
class Load:
    """What a producer does.

    Attributes:
        every_us: the mean pause between two bursts.
        burst_max: the most batches that are in flight at a time.
        acks: what it waits for; None: for nothing.
        is_patient: whether it repeats what it has sent until that is acknowledged.
        is_new: whether another producer begins with every burst.
    """

    every_us: int = 150 * MILLISECOND
    burst_max: int = 1
    acks: Acks | None = Acks.ALL
    is_patient: bool = True
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where clients live.

    Attributes:
        world: theirs.
        network: theirs.
        recorder: who notes what they see.
        brokers: all of them.
        may_be_cut: whether records of a partition may be gone, as after an unclean election.
        hear_of_damage: told of a broker that sent batches which do not match their checksums.
        newest_epoch: the leader epoch of a partition, as stored.
        kept_from: up to where retention may have given up a partition's records; 0: nowhere.
    """

    world: World
    network: Network
    recorder: Recorder
    brokers: Sequence[str]
    may_be_cut: Callable[[TopicPartition], bool]
    hear_of_damage: Callable[[str], object]
    newest_epoch: Callable[[TopicPartition], int]
    kept_from: Callable[[TopicPartition], Offset]


Reply = Produced | Batches | End


class Client:
    """What all clients do: find the leader of one partition and talk to it."""

    is_powered = True
    is_listening = True

    def __init__(self, name: str, site: Site, topic_partition: TopicPartition, key: int) -> None:
        self.name = name
        self.topic_partition = topic_partition
        self.key = key
        self._world = site.world
        self._network = site.network.attach(self)
        self._recorder = site.recorder
        self._brokers = site.brokers
        self._may_be_cut = site.may_be_cut
        self._hear_of_damage = site.hear_of_damage
        self._newest_epoch = site.newest_epoch
        self._kept_from = site.kept_from
        self._dice: random.Random = site.world.random(name)
        self.is_gone = False
        self._leader: str | None = None
        self._leader_epoch = NO_LEADER_EPOCH
        self._next_try: Event | None = None
        self._number = 0
        self._attempts: dict[int, tuple[int, bool]] = {}
        """Of what is being done now: which part each message is, and whether nothing that was
        sent before it was still open."""

    def retire(self) -> None:
        """Do nothing any more: the topic is deleted."""
        self.is_gone = True

    def deliver(self, event: NetworkEvent) -> None:
        if self.is_gone:
            return
        match event:
            case Received(_, Leaders(of)):
                self._on_leaders(of)
            case Received(sender, Batches() as answer) if answer.number in self._attempts:
                try:
                    self.on_answer(*self._attempts[answer.number], answer)
                except CorruptBatchError:
                    self._hear_of_damage(sender)
                    self.look_again()
            case Received(_, End() as answer) | StreamReceived(_, Produced() as answer):
                found = self._attempts.get(answer.number)
                if found is not None:
                    self.on_answer(*found, answer)
            case StreamEnded(stream):
                self.on_stream_ended(stream)

    def on_answer(self, part: int, is_first: bool, answer: Reply) -> None:
        raise NotImplementedError

    def on_stream_ended(self, stream: Stream) -> None:
        """A stream is gone."""

    def start(self) -> None:
        """Begin the next operation."""
        raise NotImplementedError

    def parts(self) -> Sequence[int]:
        """Which parts of the operation are to be sent now; none: it is over."""
        raise NotImplementedError

    def message(self, number: int, part: int) -> object:
        """One part as a message."""
        raise NotImplementedError

    def on_silence(self) -> None:
        """Nobody answered what was sent."""
        self._leader = None
        self._try()

    def begin(self) -> None:
        """Try what is new, again and again until it is done."""
        self._attempts = {}
        self._try()

    def look_again(self) -> None:
        """Look for the leader, and try again."""
        self._leader = None
        self._try_later(BACKOFF_US, f"{self.name} looks again", self._try)

    def target(self) -> str | None:
        """Whom to ask; None: nobody knows who leads."""
        return self._leader

    def send(self, target: str, message: object) -> None:
        """Send a message to whom it is for."""
        self._network.send(target, message)

    def _try(self) -> None:
        parts = self.parts()
        if not parts or self.is_gone:
            return
        target = self.target()
        if target is None:
            self._network.send(self._dice.choice(self._brokers), AskLeaders())
        else:
            for part in parts:
                self._number += 1
                self._attempts[self._number] = (part, part == parts[0])
                self.send(target, self.message(self._number, part))
        again = self._try if target is None else self._on_silence
        self._try_later(RETRY_US, f"{self.name} retries", again)

    def _try_later(self, delay_us: int, label: str, action: Callable[[], object]) -> None:
        if self._next_try is not None:
            self._next_try.cancel()
        self._next_try = self._world.after(delay_us, label, action)

    def _on_silence(self) -> None:
        if self.parts() and not self.is_gone:
            self.on_silence()

    def _on_leaders(self, of: Mapping[TopicPartition, tuple[str, LeaderEpoch]]) -> None:
        found = of.get(self.topic_partition)
        if found is None or found[1] < self._leader_epoch or self._leader is not None:
            return
        self._leader, self._leader_epoch = found
        self._try()

    def _record(
        self,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Sequence[tuple[int, int]] | None = None,
        details: object = None,
        ends: Mapping[int, int] | None = None,
        process: str = "",
    ) -> None:
        process = process or self.name
        if self._world.trace.is_detailed:
            what = [f"{value} at {offset}" for _, value, offset in sends]
            what += [f"{value} at {offset}" for offset, value in polled or ()]
            if what or details:
                self._world.note(f"{process}: {type} {f} {', '.join(what) or details}")
        op = Op(
            self._world.now * 1000, process, type, f, sends=sends, details=details, ends=ends or {}
        )
        self._recorder.record(op, () if polled is None else [{self.key: polled}])


@dataclass(slots=True)
class _Batch:
    values: range
    data: bytes
    base_offset: Offset | None = None


class Producer(Client):
    """See the module.

    Args:
        producer_number: another one for each producer of a world; its ids and values follow.
        load: what it does.

    Attributes:
        acknowledged: how many values.
        refusals: how often it was told each kind of error.
        is_stopped: it begins nothing any more.
        is_idle: nothing is under way.
        begun_at: when the latest burst was begun.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        topic_partition: TopicPartition,
        key: int,
        *,
        producer_number: int,
        load: Load,
    ) -> None:
        super().__init__(name, site, topic_partition, key)
        self.acknowledged = 0
        self.refusals: dict[str, int] = {}
        self.is_stopped = False
        self.is_idle = True
        self.begun_at = 0
        self.load = load
        self._first_id = producer_number * _LIVES_OF_EACH
        self._next_value = producer_number * _VALUES_OF_EACH
        self._life = 0
        self._next_sequence = 0
        self._burst: list[_Batch] = []
        self._stream: Stream | None = None

    @property
    def _process(self) -> str:
        """After an operation of which nobody knows how it ended, a client is another one."""
        return f"{self.name}.{self._life}" if self._life else self.name

    def start(self) -> None:
        if self.is_stopped or self.is_gone:
            return
        self.is_idle = False
        self.begun_at = self._world.now
        batches = 1 + self._dice.randrange(self.load.burst_max)
        self._burst = [self._seal(1 + self._dice.randrange(3)) for _ in range(batches)]
        self._tell(INVOKE)
        self.begin()

    def _seal(self, count: int) -> _Batch:
        values = range(self._next_value, self._next_value + count)
        self._next_value += count
        data = b"".join([value.to_bytes(_VALUE_BYTES, "big") for value in values])
        layout = _layout(count)
        body = bytes(layout.body)[: -len(data)] + data
        prepared = replace(layout, topic_partition=self.topic_partition, body=body)
        if self.load.acks is None:
            head = prepared.finish(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        else:
            producer_id = ProducerId(self._first_id + self._life)
            head = prepared.finish(producer_id, ProducerEpoch(0), self._next_sequence)
            self._next_sequence += count
        return _Batch(values, head + bytes(prepared.body))

    def parts(self) -> Sequence[int]:
        return [at for at, batch in enumerate(self._burst) if batch.base_offset is None]

    def message(self, number: int, part: int) -> object:
        return Produce(
            number,
            self.topic_partition,
            self._leader_epoch,
            self._burst[part].data,
            self.load.acks,
            is_successor=part != self.parts()[0],
        )

    def send(self, target: str, message: object) -> None:
        if self._stream is None or self._stream.remote != target:
            self._leave()
            self._stream = self._network.open_stream(target, ProduceStream())
        self._stream.send(message)

    def _leave(self) -> None:
        if self._stream is not None:
            self._stream.reset()
            self._stream = None

    def on_stream_ended(self, stream: Stream) -> None:
        if stream is self._stream:
            self._stream = None
            self._leader = None
            if self.parts():
                self.on_silence()

    def _try(self) -> None:
        super()._try()
        if self.load.acks is None and self._attempts:
            self._end(INFO)

    def on_silence(self) -> None:
        self._leave()
        if self.load.is_patient:
            super().on_silence()
        else:
            self._leader = None
            self._end(INFO)

    def on_answer(self, part: int, is_first: bool, answer: Reply) -> None:
        assert isinstance(answer, Produced)
        batch = self._burst[part]
        if batch.base_offset is not None:
            return
        if answer.error is not None:
            self._on_refused(is_first, answer.error)
            return
        batch.base_offset = answer.base_offset
        if not self.parts():
            self.acknowledged += sum(len(each.values) for each in self._burst)
            self._end(OK)

    def _on_refused(self, is_first: bool, error: MillraceError) -> None:
        kind = type(error).__name__
        self.refusals[kind] = self.refusals.get(kind, 0) + 1
        if isinstance(error, OutOfOrderSequenceError) and is_first:
            is_promised = self.load.acks is Acks.ALL and not self._may_be_cut(self.topic_partition)
            if is_promised:
                raise Violation(f"{self.name} is told {kind}: {error}")
            self._end(INFO)  # What came before is gone; another producer begins.
            return
        if not isinstance(error, OutOfOrderSequenceError):  # It has overtaken another batch.
            _judge(self.name, error)
        if self.load.is_patient:
            self.look_again()
            return
        self._leader = None
        if error.appended is Appended.NO:
            self._next_sequence -= len(self._burst[0].values)
            self._end(FAIL)
        else:
            self._end(INFO)

    def _end(self, type: str) -> None:
        self._tell(type)
        self._burst = []
        self._attempts = {}
        if (type == INFO or self.load.is_new) and self.load.acks is not None:
            self._life += 1
            self._next_sequence = 0
        self.is_idle = True
        pause = 1 + int(self._dice.expovariate(1 / self.load.every_us))
        self._world.after(pause, f"{self.name} sends", self.start)

    def _tell(self, type: str) -> None:
        # What the leader alone has may be lost, and its offset be another record's.
        is_kept = type == OK and self.load.acks is Acks.ALL
        sends = [
            Send(self.key, value, (batch.base_offset or 0) + at if is_kept else None)
            for batch in self._burst
            for at, value in enumerate(batch.values)
        ]
        self._record(type, "send", sends=sends, process=self._process)


class Consumer(Client):
    """See the module.

    Args:
        f: `poll`, or `final`: then it stops at the high watermark that it meets.
        every_us: the mean pause between two polls.
        reads_followers: whether it asks any broker for records.

    Attributes:
        is_done: a final one has read everything.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        topic_partition: TopicPartition,
        key: int,
        *,
        f: str = "poll",
        every_us: int,
        reads_followers: bool = False,
    ) -> None:
        super().__init__(name, site, topic_partition, key)
        self.is_done = False
        self.offset = Offset(0)
        self._f = f
        self._every_us = every_us
        self._reads_followers = reads_followers
        self._last_epoch = NO_LEADER_EPOCH
        self._is_polling = False

    def start(self) -> None:
        if self.is_gone:
            return
        self._is_polling = True
        self._record(INVOKE, self._f)
        self.begin()

    def target(self) -> str | None:
        knows_epoch = self._leader_epoch != NO_LEADER_EPOCH
        if self._reads_followers and knows_epoch and self._dice.random() < 0.75:
            return self._dice.choice(self._brokers)
        return self._leader

    def parts(self) -> Sequence[int]:
        return [0] if self._is_polling else []

    def message(self, number: int, part: int) -> object:
        return Read(
            number,
            self.topic_partition,
            self.offset,
            self._leader_epoch,
            self._last_epoch,
            self._reads_followers,
        )

    def on_answer(self, part: int, is_first: bool, answer: Reply) -> None:
        assert isinstance(answer, Batches)
        if answer.error is not None:
            self._on_refused(answer.error, answer.log_start_offset)
            self.look_again()
            return
        if answer.diverging is not None:
            if not self._may_be_cut(self.topic_partition):
                raise Violation(
                    f"{self.name} has read up to {self.offset} in epoch {self._last_epoch}, and "
                    f"the leader of epoch {self._leader_epoch} answers {answer.diverging}"
                )
            self._go_back(answer.diverging.end_offset)
            self.look_again()
            return
        polled: list[tuple[int, int]] = []
        end, last_epoch = self.offset, self._last_epoch
        for header, batch in walk(answer.data):
            entries = entries_of(self.topic_partition, bytes(batch))
            polled += [entry for entry in entries if entry[0] >= self.offset]
            end, last_epoch = header.next_offset, header.leader_epoch
        self.offset, self._last_epoch = end, last_epoch
        is_short = polled and end < answer.high_watermark
        ends = {self.key: answer.high_watermark} if is_short else {}
        self._record(OK, self._f, polled=polled, ends=ends)
        self._is_polling = False
        self._attempts = {}
        if self._f == "final" and self.offset >= answer.high_watermark:
            self.is_done = True
            return
        pause = 1 + int(self._dice.expovariate(1 / self._every_us))
        self._world.after(pause, f"{self.name} polls", self.start)

    def _on_refused(self, error: MillraceError, log_start_offset: Offset) -> None:
        if not isinstance(error, OffsetOutOfRangeError):
            _judge(self.name, error)
        elif self._may_be_cut(self.topic_partition):
            self._go_to(log_start_offset)
        elif max(self.offset, log_start_offset) > self._kept_from(self.topic_partition):
            raise Violation(f"{self.name} is told {type(error).__name__}: {error}")
        elif log_start_offset > self.offset:
            self._go_to(log_start_offset)  # Else another broker has answered: its leader knows.

    def _go_back(self, offset: Offset) -> None:
        """Records that were read are gone: read on where the log ends that there is now."""
        self._go_to(Offset(max(min(offset, self.offset), 0)))

    def _go_to(self, offset: Offset) -> None:
        self.offset = offset
        self._last_epoch = NO_LEADER_EPOCH
        self._record(OK, "seek", details={self.key: self.offset})


class EndReader(Client):
    """See the module."""

    def __init__(
        self, name: str, site: Site, topic_partition: TopicPartition, key: int, *, every_us: int
    ) -> None:
        super().__init__(name, site, topic_partition, key)
        self._every_us = every_us
        self._is_asking = False

    def start(self) -> None:
        if self.is_gone:
            return
        self._is_asking = True
        self._record(INVOKE, "list_offsets", details={self.key: None})
        self.begin()

    def parts(self) -> Sequence[int]:
        return [0] if self._is_asking else []

    def message(self, number: int, part: int) -> object:
        return AskEnd(number, self.topic_partition, self._leader_epoch)

    def on_answer(self, part: int, is_first: bool, answer: Reply) -> None:
        assert isinstance(answer, End)
        if answer.error is not None:
            _judge(self.name, answer.error)
            self.look_again()
            return
        # Who was replaced, and has not heard of it, may say what was true a moment ago (P40).
        is_late = answer.leader_epoch < self._newest_epoch(self.topic_partition)
        self._record(INFO if is_late else OK, "list_offsets", details={self.key: answer.end_offset})
        self._is_asking = False
        self._attempts = {}
        pause = 1 + int(self._dice.expovariate(1 / self._every_us))
        self._world.after(pause, f"{self.name} asks", self.start)


@cache
def _layout(count: int) -> PreparedBatch:
    """Return a batch of so many values: one of others differs from it in its last bytes alone."""
    values = [bytes(_VALUE_BYTES)] * count
    return prepare(_NOWHERE, Columns(count, WallMs(1_000_000), values=values))


@lru_cache(maxsize=1 << 14)  # What a consumer has polled, the final one reads again.
def entries_of(topic_partition: TopicPartition, batch: bytes) -> tuple[tuple[int, int], ...]:
    """Return offset and value of each record of a batch, whose checksums must hold."""
    records = open_batch(topic_partition, parse_header(batch), batch, 1 << 20)
    offsets, values = records.column(0).to_pylist(), records.column(3).to_pylist()
    return tuple(
        (offset, int.from_bytes(value, "big"))
        for offset, value in zip(offsets, values, strict=True)
    )


def _judge(name: str, error: MillraceError) -> None:
    """Refuse an error that no client should meet, whatever happens to brokers."""
    if not isinstance(error, RetriableError | StorageError | OffsetNotAvailableError):
        raise Violation(f"{name} is told {type(error).__name__}: {error}")
