"""The last stable offset: what readers of committed records may be told of (P52)."""

from millrace.core.ids import Offset, ProducerId
from millrace.core.replica.log.open_transactions import (
    NOTHING_UNDECIDED,
    Ended,
    OpenTransactions,
)


def opened(*first_offsets: int) -> OpenTransactions:
    """Transactions of producers 0, 1, … that are open."""
    transactions = OpenTransactions()
    for number, first_offset in enumerate(first_offsets):
        transactions.begin(ProducerId(number), Offset(first_offset))
    return transactions


def stable(transactions: OpenTransactions, high_watermark: int) -> int:
    return transactions.undecided().last_stable_offset(Offset(high_watermark))


def test_without_transactions_everything_committed_is_stable() -> None:
    assert opened().undecided() is NOTHING_UNDECIDED
    assert stable(opened(), 7) == 7


def test_nothing_from_the_oldest_open_transaction_on_is_stable() -> None:
    transactions = opened(10, 20)
    assert stable(transactions, 30) == 10
    transactions.end(ProducerId(0), Offset(30), Offset(10))
    assert stable(transactions, 40) == 20


def test_a_transaction_above_the_high_watermark_does_not_lower_it() -> None:
    assert stable(opened(10), 5) == 5


def test_an_end_counts_once_its_marker_is_below_the_high_watermark() -> None:
    transactions = opened(10)
    transactions.end(ProducerId(0), Offset(30), Offset(10))
    assert stable(transactions, 30) == 10
    assert stable(transactions, 31) == 31


def test_of_several_uncommitted_ends_the_smallest_first_offset_counts() -> None:
    transactions = opened(10, 20, 25)
    transactions.end(ProducerId(1), Offset(30), Offset(20))
    transactions.end(ProducerId(0), Offset(40), Offset(10))
    transactions.end(ProducerId(2), Offset(50), Offset(25))
    assert stable(transactions, 30) == 10
    assert stable(transactions, 35) == 10
    assert stable(transactions, 41) == 25
    assert stable(transactions, 51) == 51


def test_a_marker_of_a_transaction_without_records_keeps_nothing_back() -> None:
    transactions = opened()
    transactions.end(ProducerId(0), Offset(30), Offset(-1))
    assert transactions.undecided() is NOTHING_UNDECIDED


def test_committed_ends_are_forgotten() -> None:
    transactions = opened(10, 20)
    transactions.end(ProducerId(0), Offset(30), Offset(10))
    transactions.end(ProducerId(1), Offset(40), Offset(20))
    transactions.settle(Offset(31))
    assert transactions.ended == (Ended(Offset(40), Offset(20)),)
    transactions.settle(Offset(41))
    assert transactions.undecided() is NOTHING_UNDECIDED


def test_a_copy_changes_alone() -> None:
    transactions = opened(10)
    twin = transactions.copy()
    twin.end(ProducerId(0), Offset(30), Offset(10))
    assert stable(transactions, 40) == 10
    assert stable(twin, 40) == 40
