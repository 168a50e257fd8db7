"""All coordinators are asked before a person ends what hangs in a partition (T8, P54)."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.coordinator.transaction_finder import TransactionFinder
from millrace.core.coordinator.transactions.transaction import Producer
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    InvalidTransactionStateError,
    MillraceError,
    NotLeaderError,
    UnsupportedFeatureError,
)
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.runtime.transport.calls import CallError, Status

PLACE = TopicPartition(TopicId(b"t" * 16), 3)
WRITER = Producer(ProducerId(7), ProducerEpoch(2))


class Coordinators:
    """The leaders of `__transactions`: broker 10 + n leads part n, and answers as it is told."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = answers
        self.asked: list[tuple[int, pb.FindTransactionRequest]] = []
        parts = [SimpleNamespace(leader=10 + number) for number in range(len(answers))]
        image = SimpleNamespace(topics={TRANSACTIONS_TOPIC: SimpleNamespace(partitions=parts)})
        partitions: Any = SimpleNamespace(image=image)
        peers: Any = self
        self.finder = TransactionFinder(partitions, peers)

    async def ask(self, broker_id: int, method: Any, request: pb.FindTransactionRequest) -> Any:
        assert method.name == "FindTransaction"
        self.asked.append((broker_id, request))
        answer = self._answers[request.part]
        if isinstance(answer, MillraceError):
            return pb.FindTransactionResponse(error=error_to_wire(answer))
        if isinstance(answer, Exception):
            raise answer
        return pb.FindTransactionResponse(transactional_id=answer)


async def test_a_transaction_hangs_when_all_coordinators_say_so() -> None:
    coordinators = Coordinators(*[""] * 120)
    await coordinators.finder.check_hanging(PLACE, WRITER)
    assert sorted(broker - request.part for broker, request in coordinators.asked) == [10] * 120
    _, request = coordinators.asked[0]
    assert request.topic_partition.topic_id == PLACE.topic_id
    assert request.topic_partition.partition == PLACE.partition
    assert (request.producer_id, request.producer_epoch) == WRITER


async def test_what_one_coordinator_knows_does_not_hang() -> None:
    coordinators = Coordinators("", "default/copy", "")
    with pytest.raises(InvalidTransactionStateError, match="the coordinator of 'copy'"):
        await coordinators.finder.check_hanging(PLACE, WRITER)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (CallError(Status.UNAVAILABLE, "no broker listens there"), CoordinatorLoadInProgressError),
        (TimeoutError(), CoordinatorLoadInProgressError),
        (NotLeaderError("another one leads"), CoordinatorLoadInProgressError),
        (CallError(Status.UNIMPLEMENTED, "unknown rpc"), UnsupportedFeatureError),
    ],
)
async def test_a_coordinator_that_does_not_answer_may_know_it(
    answer: Exception, refusal: type[MillraceError]
) -> None:
    with pytest.raises(refusal):
        await Coordinators("", answer).finder.check_hanging(PLACE, WRITER)


@pytest.mark.parametrize("image", [None, SimpleNamespace(topics={})])
async def test_a_broker_that_has_not_heard_of_transactions_ends_none(image: Any) -> None:
    partitions: Any = SimpleNamespace(image=image)
    peers: Any = None
    with pytest.raises(CoordinatorLoadInProgressError):
        await TransactionFinder(partitions, peers).check_hanging(PLACE, WRITER)
