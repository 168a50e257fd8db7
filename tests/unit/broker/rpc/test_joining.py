"""How transactional batches wait until their partition has joined."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.coordinator.transaction_joins import Done, Writer
from millrace.broker.rpc.joining import Joining
from millrace.core.errors import (
    InvalidProducerEpochError,
    MillraceError,
    NotLeaderError,
    ProducerFencedError,
)
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition
from millrace.core.records.markers import BUMPING, NOT_BUMPING
from millrace.core.replica.replication.leader_transactions import JoinGuard

PLACE = TopicPartition(TopicId(b"t" * 16), 3)
FIRST: Any = SimpleNamespace(producer_id=7, producer_epoch=2)
SECOND: Any = SimpleNamespace(producer_id=7, producer_epoch=2)
OTHER: Any = SimpleNamespace(producer_id=8, producer_epoch=0)


class Led:
    """A partition with this leader."""

    topic_partition = PLACE

    def __init__(self, world: "World") -> None:
        self._world = world

    @property
    def leader(self) -> "World":
        if not self._world.leads:
            raise NotLeaderError("another broker leads")
        return self._world


class World:
    """A partition whose leader answers `begin_joining` by a script, and the asked coordinator."""

    def __init__(self, *script: JoinGuard | MillraceError | None) -> None:
        self.script = list(script)
        self.asked: list[tuple[Writer, Done]] = []
        self.judged: list[tuple[str, object]] = []
        self.void: list[JoinGuard] = []
        self.protocols: list[int] = []
        self.leads = True
        self.partition: Any = Led(self)
        joins: Any = self
        self.joining = Joining(joins)

    def begin_joining(self, header: object, protocol: int = BUMPING) -> JoinGuard | None:
        del header
        self.protocols.append(protocol)
        said = self.script.pop(0)
        if isinstance(said, MillraceError):
            raise said
        return said

    def is_valid(self, guard: JoinGuard) -> bool:
        return guard not in self.void

    def ask(self, writer: Writer, place: TopicPartition, done: Done) -> None:
        assert place == PLACE
        self.asked.append((writer, done))

    def answer(self, error: MillraceError | None = None) -> None:
        _, done = self.asked.pop(0)
        done(error)

    def waits(self, header: Any, name: str, transactional_id: str = "default/copy") -> bool:
        def judge(outcome: object) -> None:
            self.judged.append((name, outcome))

        return self.joining.waits(self.partition, header, transactional_id, judge)


def guard(epoch: int = 2) -> JoinGuard:
    return JoinGuard(ProducerId(7), ProducerEpoch(epoch))


def test_a_batch_of_an_open_transaction_does_not_wait() -> None:
    world = World(None)
    assert not world.waits(FIRST, "first")
    assert not world.asked


def test_the_first_batch_waits_for_the_coordinator_and_later_ones_behind_it() -> None:
    made = guard()
    world = World(made)
    assert world.waits(FIRST, "first")
    assert world.waits(SECOND, "second")
    (writer, _), *others = world.asked
    assert writer == Writer("default/copy", ProducerId(7), ProducerEpoch(2))
    assert not others
    assert not world.judged
    world.answer()
    assert world.judged == [("first", made), ("second", None)]


def test_a_marker_meanwhile_lets_the_first_batch_ask_again() -> None:
    late, made = guard(), guard()
    world = World(late, made)
    world.waits(FIRST, "first")
    world.void.append(late)
    world.answer()
    assert world.judged.pop() == ("first", None)
    assert world.waits(FIRST, "again")
    world.answer()
    assert world.judged == [("again", made)]


def test_a_leader_that_was_deposed_meanwhile_looks_again() -> None:
    world = World(guard())
    world.waits(FIRST, "first")
    world.leads = False
    world.answer()
    assert world.judged == [("first", None)]


def test_producers_do_not_wait_for_each_other() -> None:
    world = World(guard(), None)
    assert world.waits(FIRST, "first")
    assert not world.waits(OTHER, "other")


def test_a_refusal_is_the_first_batchs_and_others_ask_for_themselves() -> None:
    world = World(guard())
    world.waits(FIRST, "first")
    world.waits(SECOND, "second")
    refusal = ProducerFencedError("another producer began")
    world.answer(refusal)
    assert world.judged == [("first", refusal), ("second", None)]


def test_a_batch_that_is_too_old_is_refused_at_once() -> None:
    world = World(InvalidProducerEpochError("newer"))
    with pytest.raises(InvalidProducerEpochError):
        world.waits(FIRST, "first")
    assert not world.asked


def test_leader_and_coordinator_are_told_the_protocol_of_the_transaction() -> None:
    """T14: else a guard outlives the marker of the producer's last transaction."""
    world = World(guard())
    assert world.joining.waits(world.partition, FIRST, "default/copy", print, NOT_BUMPING)
    assert world.protocols == [NOT_BUMPING]
    assert world.asked[0][0].protocol == NOT_BUMPING
