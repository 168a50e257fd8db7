"""Simulated clients: exact and small. They record what they did and saw for `tests.checkers`.

- A `Producer` sends one value after another to one partition, idempotently, and repeats each until
  it is acknowledged. Any answer to any of the attempts counts.
- A `Consumer` polls one partition from its beginning on, and checks with every fetch that what it
  has read is still a prefix of the leader's log.

Both look for leaders by asking any broker, after every refusal and every silence.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.checkers.history import INVOKE, OK, Op, Recorder, Send
from tests.sim.messages import AskLeaders, Batches, Leaders, Produce, Produced, Read
from tests.sim.network import Network, NetworkEvent, Received
from tests.sim.world import MILLISECOND, Violation, World

from millrace.core.errors import MillraceError, RetriableError, StorageError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import open_batch, prepare, walk
from millrace.core.records.columns import Columns
from millrace.core.replication.leader import Acks

RETRY_US: Final = 400 * MILLISECOND
BACKOFF_US: Final = 50 * MILLISECOND

_VALUE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Site:
    """Where clients live: their world and network, who notes what they see, and all brokers."""

    world: World
    network: Network
    recorder: Recorder
    brokers: Sequence[str]


class Client:
    """What all clients do: find the leader of one partition and talk to it."""

    is_powered = True
    is_listening = True

    def __init__(
        self,
        name: str,
        site: Site,
        topic_partition: TopicPartition,
    ) -> None:
        self.name = name
        self.topic_partition = topic_partition
        self.key = topic_partition.partition
        self._world = site.world
        self._network = site.network.attach(self)
        self._recorder = site.recorder
        self._brokers = site.brokers
        self._dice: random.Random = site.world.random(name)
        self._leader: str | None = None
        self._leader_epoch = NO_LEADER_EPOCH
        self._number = 0
        self._attempts: set[int] = set()
        """Of what is being done now."""

    def deliver(self, event: NetworkEvent) -> None:
        match event:
            case Received(_, Leaders(of)):
                self._on_leaders(of)
            case Received(_, Produced() | Batches() as answer) if answer.number in self._attempts:
                self.on_answer(answer)

    def on_answer(self, answer: Produced | Batches) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin the next operation."""
        raise NotImplementedError

    def message(self) -> object | None:
        """What is to be sent now; None: nothing."""
        raise NotImplementedError

    def begin(self) -> None:
        """Try what is new, again and again until it is done."""
        self._attempts = set()
        self._try()

    def look_again(self) -> None:
        """Look for the leader, and try again."""
        self._leader = None
        self._world.after(BACKOFF_US, f"{self.name} looks again", self._try)

    def _try(self) -> None:
        if self.message() is None:
            return
        self._number += 1
        number = self._number
        if self._leader is None:
            self._network.send(self._dice.choice(self._brokers), AskLeaders())
        else:
            self._attempts.add(number)
            self._network.send(self._leader, self.message())
        self._world.after(RETRY_US, f"{self.name} retries", self._on_silence, number)

    def _on_silence(self, number: int) -> None:
        if number == self._number and self.message() is not None:
            self._leader = None
            self._try()

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
    ) -> None:
        op = Op(self._world.now * 1000, self.name, type, f, sends=sends)
        self._recorder.record(op, () if polled is None else [{self.key: polled}])


class Producer(Client):
    """See the module.

    Args:
        producer_id: its own.
        every_us: the pause between two sends.

    Attributes:
        acknowledged: how many values.
        is_stopped: it begins nothing any more.
        is_idle: everything that was sent is acknowledged.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        every_us: int,
    ) -> None:
        super().__init__(name, site, topic_partition)
        self.acknowledged = 0
        self.is_stopped = False
        self.is_idle = True
        self._producer_id = ProducerId(producer_id)
        self._every_us = every_us
        self._values: tuple[int, ...] = ()
        self._sent = 0
        self._batch = b""

    def start(self) -> None:
        if self.is_stopped:
            return
        self.is_idle = False
        count = 1 + self._dice.randrange(3)
        first = self._sent
        self._values = tuple(range(first, first + count))
        self._sent += count
        columns = Columns(
            count,
            WallMs(1_000_000),
            values=[value.to_bytes(_VALUE_BYTES, "big") for value in self._values],
        )
        prepared = prepare(self.topic_partition, columns)
        head = prepared.finish(self._producer_id, ProducerEpoch(0), first)
        self._batch = head + bytes(prepared.body)
        self._record(INVOKE, "send", sends=[Send(self.key, value) for value in self._values])
        self.begin()

    def message(self) -> object | None:
        if self.is_idle:
            return None
        return Produce(self._number, self.topic_partition, self._batch, Acks.ALL)

    def on_answer(self, answer: Produced | Batches) -> None:
        assert isinstance(answer, Produced)
        if answer.error is not None:
            _judge(self.name, answer.error)
            self.look_again()
            return
        self._record(
            OK,
            "send",
            sends=[
                Send(self.key, value, answer.base_offset + at)
                for at, value in enumerate(self._values)
            ],
        )
        self.acknowledged += len(self._values)
        self.is_idle = True
        self._attempts = set()
        pause = 1 + int(self._dice.expovariate(1 / self._every_us))
        self._world.after(pause, f"{self.name} sends", self.start)


class Consumer(Client):
    """See the module.

    Args:
        f: `poll`, or `final`: then it stops at the high watermark that it meets.
        every_us: the pause between two polls.

    Attributes:
        is_done: a final one has read everything.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        topic_partition: TopicPartition,
        *,
        f: str = "poll",
        every_us: int,
    ) -> None:
        super().__init__(name, site, topic_partition)
        self.is_done = False
        self.offset = Offset(0)
        self._f = f
        self._every_us = every_us
        self._last_epoch = NO_LEADER_EPOCH
        self._is_polling = False

    def start(self) -> None:
        self._is_polling = True
        self._record(INVOKE, self._f)
        self.begin()

    def message(self) -> object | None:
        if not self._is_polling:
            return None
        return Read(
            self._number, self.topic_partition, self.offset, self._leader_epoch, self._last_epoch
        )

    def on_answer(self, answer: Produced | Batches) -> None:
        assert isinstance(answer, Batches)
        if answer.error is not None:
            _judge(self.name, answer.error)
            self.look_again()
            return
        if answer.diverging is not None:
            raise Violation(
                f"{self.name} has read up to {self.offset} in epoch {self._last_epoch}, and the "
                f"leader of epoch {self._leader_epoch} answers {answer.diverging}"
            )
        polled: list[tuple[int, int]] = []
        for header, batch in walk(answer.data):
            records = open_batch(self.topic_partition, header, batch, 1 << 20)
            offsets, values = records.column(0).to_pylist(), records.column(3).to_pylist()
            polled += [
                (offset, int.from_bytes(value, "big"))
                for offset, value in zip(offsets, values, strict=True)
                if offset >= self.offset
            ]
            self.offset = header.next_offset
            self._last_epoch = header.leader_epoch
        self._record(OK, self._f, polled=polled)
        self._is_polling = False
        self._attempts = set()
        if self._f == "final" and self.offset >= answer.high_watermark:
            self.is_done = True
            return
        pause = 1 + int(self._dice.expovariate(1 / self._every_us))
        self._world.after(pause, f"{self.name} polls", self.start)


def _judge(name: str, error: MillraceError) -> None:
    """Refuse an error that no client should meet, whatever happens to brokers."""
    if not isinstance(error, RetriableError | StorageError):
        if type(error).__name__ in ("UnknownTopicOrPartitionError",):
            return
        raise Violation(f"{name} is told {type(error).__name__}: {error}")
