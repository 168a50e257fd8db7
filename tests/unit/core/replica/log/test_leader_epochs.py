"""Where leader epochs begin and end (P2, P3)."""

import pytest

from millrace.core.ids import NOTHING_WRITTEN, EpochEnd, LeaderEpoch, Offset
from millrace.core.replica.log.leader_epochs import UNDEFINED_EPOCH_END, LeaderEpochs

ENTRIES = [(1, 0), (3, 10), (4, 25)]


def end_of(epoch: int, entries: list[tuple[int, int]] = ENTRIES, end: int = 40) -> tuple[int, int]:
    return LeaderEpochs(entries).end_offset_for(LeaderEpoch(epoch), Offset(end))


def test_the_latest_epoch_ends_where_the_log_ends() -> None:
    assert end_of(4) == (4, 40)


def test_an_epoch_ends_where_the_next_known_one_begins() -> None:
    assert end_of(1) == (1, 10)
    assert end_of(3) == (3, 25)


def test_an_epoch_that_wrote_nothing_answers_for_the_one_before_it() -> None:
    assert end_of(2) == (1, 10)


def test_an_epoch_below_the_first_ends_where_the_first_begins() -> None:
    assert end_of(0, [(2, 7), (5, 9)]) == (0, 7)


@pytest.mark.parametrize("epoch", [5, -1])
def test_an_epoch_from_the_future_or_none_is_undefined(epoch: int) -> None:
    assert end_of(epoch) == UNDEFINED_EPOCH_END
    assert end_of(1, []) == UNDEFINED_EPOCH_END


def test_every_offset_has_the_epoch_that_wrote_it() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert [epochs.epoch_of(Offset(at)) for at in (0, 9, 10, 24, 25, 99)] == [1, 1, 3, 3, 4, 4]
    assert LeaderEpochs([(2, 7)]).epoch_of(Offset(6)) == -1


def test_only_a_new_epoch_is_news() -> None:
    epochs = LeaderEpochs()
    assert epochs.append(LeaderEpoch(1), Offset(0))
    assert not epochs.append(LeaderEpoch(1), Offset(5))
    assert epochs.append(LeaderEpoch(2), Offset(5))
    assert not epochs.append(LeaderEpoch(1), Offset(3)), "a replay of the first epoch's batches"
    assert epochs.entries == ((1, 0), (2, 5))


def test_an_epoch_without_a_batch_leaves_no_trace() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 5)])
    epochs.append(LeaderEpoch(3), Offset(5))
    assert epochs.entries == ((1, 0), (3, 5))


def test_what_a_batch_contradicts_goes() -> None:
    epochs = LeaderEpochs([(1, 0), (5, 8)])
    epochs.append(LeaderEpoch(3), Offset(9))
    assert epochs.entries == ((1, 0), (3, 9))


def test_a_batch_of_an_earlier_epoch_goes_on_from_where_that_epoch_began() -> None:
    """A truncation was undone by a loss of power: the file lists epochs without batches."""
    epochs = LeaderEpochs(ENTRIES)
    assert epochs.append(LeaderEpoch(1), Offset(12))
    assert epochs.entries == ((1, 0),)


def test_truncation_at_the_end_forgets_epochs_that_began_there_or_later() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.truncate_from_end(Offset(26))
    assert epochs.truncate_from_end(Offset(25))
    assert epochs.entries == ((1, 0), (3, 10))
    assert epochs.truncate_from_end(Offset(0))
    assert len(epochs.entries) == 0


def test_truncation_at_the_start_keeps_the_epoch_that_it_falls_into() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.truncate_from_start(Offset(0))
    assert epochs.truncate_from_start(Offset(12))
    assert epochs.entries == ((3, 12), (4, 25))
    assert not epochs.truncate_from_start(Offset(12))
    assert not epochs.truncate_from_start(Offset(5))


@pytest.mark.parametrize(
    ("fetch_offset", "last_epoch", "expected"),
    [
        (40, 4, None),
        (25, 3, None),
        (12, 3, None),
        (41, 4, (4, 40)),  # Longer than this log.
        (26, 3, (3, 25)),  # Longer than that epoch was.
        (8, 2, (1, 10)),  # An epoch that is not known here.
        (40, 7, UNDEFINED_EPOCH_END),  # One from the future.
        (40, -1, None),  # An empty log diverges from nothing.
    ],
)
def test_a_log_diverges_if_it_is_longer_than_its_last_epoch_was_or_that_epoch_is_unknown(
    fetch_offset: int, last_epoch: int, expected: tuple[int, int] | None
) -> None:
    epochs = LeaderEpochs(ENTRIES)
    found = epochs.diverging(Offset(fetch_offset), LeaderEpoch(last_epoch), Offset(40))
    assert found == expected


def test_a_reign_without_a_batch_ends_the_epoch_before_it_and_changes_nothing_here() -> None:
    epochs = LeaderEpochs(ENTRIES)
    reigning = epochs.with_reign(LeaderEpoch(6), Offset(40))
    assert reigning.entries == (*ENTRIES, (6, 40))
    assert reigning.end_offset_for(LeaderEpoch(5), Offset(43)) == (4, 40)
    assert epochs.entries == tuple(ENTRIES)
    assert epochs.with_reign(LeaderEpoch(4), Offset(25)) is epochs


def test_a_reader_keeps_the_entries_it_took() -> None:
    epochs = LeaderEpochs(ENTRIES)
    taken = epochs.entries
    epochs.append(LeaderEpoch(9), Offset(40))
    assert taken == tuple(ENTRIES)


# What another log must have (P26).


def has(entries: list[tuple[int, int]], end: tuple[int, int], at: int, *, start: int = 0) -> bool:
    """Whether a log from `start` to `at` has everything before an end."""
    named = EpochEnd(LeaderEpoch(end[0]), Offset(end[1]))
    return LeaderEpochs(entries).has(named, Offset(start), Offset(at))


def test_records_are_named_by_the_last_of_them() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert [epochs.end_at(Offset(at)) for at in (1, 10, 11, 26)] == [
        (1, 1),
        (1, 10),
        (3, 11),
        (4, 26),
    ]
    assert epochs.end_at(Offset(0)) == LeaderEpochs().end_at(Offset(0)) == NOTHING_WRITTEN
    assert LeaderEpochs([(2, 7)]).end_at(Offset(7)) == (-1, 7)


def test_a_log_has_what_ends_where_it_ends_and_not_one_record_more() -> None:
    assert has(ENTRIES, (4, 40), 40)
    assert has(ENTRIES, (4, 40), 41)
    assert not has(ENTRIES, (4, 40), 39)
    assert has(ENTRIES, (3, 25), 25)
    assert not has(ENTRIES[:2], (3, 25), 24)


def test_every_log_has_no_records() -> None:
    assert has([], NOTHING_WRITTEN, 0)
    assert has(ENTRIES, NOTHING_WRITTEN, 40)


def test_records_of_another_leader_do_not_count_however_many_they_are() -> None:
    assert not has([(1, 0)], (2, 450), 500)
    assert not has([(1, 0), (2, 449)], (1, 450), 500), "a later epoch that lacks the earlier one's"


def test_what_a_log_has_deleted_by_age_it_had() -> None:
    assert has([], (4, 40), 40, start=40)
    assert has([(5, 60)], (4, 40), 80, start=60)
    assert not has([], (4, 40), 39, start=39)


def test_where_the_other_log_has_deleted_its_last_record_the_end_alone_counts() -> None:
    assert has(ENTRIES, (-1, 40), 40)
    assert not has(ENTRIES, (-1, 40), 39)
