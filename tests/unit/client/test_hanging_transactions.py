"""A transaction hangs if a partition has it open, and no coordinator will end it."""

from collections.abc import Collection, Iterable

import pytest

from millrace.client._admin.transactions import (
    HangingTransaction,
    TransactionAdministration,
    TransactionDescription,
    TransactionListing,
    TransactionStateName,
)
from millrace.client._cluster.open_transactions import OpenTransaction
from millrace.core.errors import MillraceError, UnknownTopicOrPartitionError
from millrace.core.ids import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.topics import PartitionName

PLACE = TopicPartition(TopicId(b"t" * 16), 0)


def opened(producer_id: int, epoch: int, first_offset: int = 5) -> OpenTransaction:
    return OpenTransaction(
        ProducerId(producer_id), ProducerEpoch(epoch), Offset(first_offset), WallMs(0)
    )


class Cluster(TransactionAdministration):
    """What its leaders and coordinators know.

    Args:
        looks: the open transactions of the partition, at one look after another.
        listings: of transactional ids.
        ended: of each id, with which its last decided transaction was written.

    Attributes:
        parts: of coordinators, as far as the broker that is asked has heard.
        owed: the epochs of transactions, by producer, whose end is owed to deleted topics.
    """

    parts = 50

    def __init__(
        self,
        looks: list[list[OpenTransaction]],
        listings: Iterable[TransactionListing] = (),
        ended: dict[str, tuple[int, int]] | None = None,
    ) -> None:
        self._looks = looks
        self._listings = list(listings)
        self._ended = ended or {}
        self.owed: dict[int, set[int]] = {}

    async def _open_in(
        self, places: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, list[OpenTransaction]], dict[TopicPartition, MillraceError]]:
        assert list(places) == [PLACE]
        return {PLACE: self._looks.pop(0)}, {}

    async def _list_all_transactions(
        self,
        states: Collection[TransactionStateName],
        producer_id: int | None = None,
        *,
        none_hidden: bool = False,
    ) -> tuple[list[TransactionListing], int]:
        assert none_hidden
        return [listing for listing in self._listings if listing.state in states], self.parts

    async def _owed_epochs(self, producer_id: int) -> set[int]:
        return self.owed.get(producer_id, set())

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        (listing,) = [it for it in self._listings if it.transactional_id == transactional_id]
        return TransactionDescription(
            transactional_id,
            listing.state,
            listing.producer_id,
            listing.producer_epoch,
            60_000,
            listing.open_ms,
            (),
            "producer",
            True,
            *self._ended[transactional_id],
        )

    async def _partitions_of(
        self, topics: Collection[str] | None
    ) -> dict[TopicPartition, PartitionName]:
        return {PLACE: ("orders", 0)}


def listed(state: TransactionStateName, producer_id: int, epoch: int) -> TransactionListing:
    return TransactionListing("billing", state, producer_id, epoch, 1)


async def test_one_that_nobody_knows_hangs() -> None:
    hanging = opened(7, 3)
    cluster = Cluster([[hanging, opened(8, 0)], [hanging]], [listed("ongoing", 8, 0)])
    assert await cluster.find_hanging_transactions() == [HangingTransaction("orders", 0, hanging)]


async def test_one_of_an_earlier_epoch_than_its_producer_s_hangs() -> None:
    hanging = opened(7, 3)
    cluster = Cluster([[hanging], [hanging]], [listed("ongoing", 7, 4)])
    assert len(await cluster.find_hanging_transactions()) == 1


async def test_one_whose_id_has_had_another_one_since_hangs() -> None:
    hanging = opened(7, 3)
    cluster = Cluster([[hanging], [hanging]], [listed("complete_commit", 7, 4)])
    assert len(await cluster.find_hanging_transactions()) == 1


@pytest.mark.parametrize(
    ("listing", "ended"),
    [
        (listed("ongoing", 7, 3), (-1, -1)),
        (listed("prepare_commit", 7, 4), (7, 3)),
        (listed("prepare_abort", 9, 0), (7, 3)),  # The epochs of the first id are used up.
    ],
)
async def test_one_that_its_coordinator_will_end_does_not_hang(
    listing: TransactionListing, ended: tuple[int, int]
) -> None:
    """To end it by hand could take back what is committed elsewhere."""
    there = opened(7, 3)
    cluster = Cluster([[there], [there]], [listing], {"billing": ended})
    assert await cluster.find_hanging_transactions() == []


async def test_one_whose_end_is_owed_to_a_topic_that_was_deleted_does_not_hang() -> None:
    """T8: the topic is back, and the end, perhaps a commit, comes."""
    there, hanging = opened(7, 3), opened(7, 5, first_offset=9)
    cluster = Cluster(2 * [[there, hanging]], [listed("complete_commit", 7, 8)])
    cluster.owed = {7: {3}}
    assert await cluster.find_hanging_transactions() == [HangingTransaction("orders", 0, hanging)]


async def test_a_broker_that_has_not_heard_of_coordinators_is_no_word_of_theirs() -> None:
    there = opened(7, 3)
    cluster = Cluster([[there], [there]])
    cluster.parts = 0
    with pytest.raises(UnknownTopicOrPartitionError, match="not heard"):
        await cluster.find_hanging_transactions()


async def test_one_that_has_ended_meanwhile_does_not_hang() -> None:
    cluster = Cluster([[opened(7, 3)], [opened(7, 4, first_offset=9)]])
    assert await cluster.find_hanging_transactions() == []


async def test_without_open_transactions_no_coordinator_is_asked() -> None:
    assert await Cluster([[]]).find_hanging_transactions() == []
