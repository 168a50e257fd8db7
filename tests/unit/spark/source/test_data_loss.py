"""What is missing of the records that a query is to read."""

import pytest

from millrace.spark.cluster.offsets import Log, LogPosition, Offsets
from millrace.spark.errors import CheckpointError, DataLossError, TopicRecreatedError
from millrace.spark.options.option import Use
from millrace.spark.options.subscriptions import Partitions, TopicPattern, Topics
from millrace.spark.source.data_loss import (
    Loss,
    as_planned,
    check_is_of_this_query,
    losses,
    losses_before,
    losses_of_new,
    raise_for,
    read_on,
    what_to_do,
)

PLACE = ("clicks", 0)


def at(offset: int, topic_id: str = "id") -> Offsets:
    return Offsets({PLACE: LogPosition(offset, 3)}, {"clicks": topic_id})


def log(beginning: int, end: int) -> Log:
    return Log({PLACE: beginning}, at(end))


def test_nothing_is_missing_within_the_log() -> None:
    for offset in (10, 15, 20):
        assert list(losses(at(offset), log(10, 20), {})) == []
    raise_for([], "")


@pytest.mark.parametrize(
    ("begin", "now", "lost_from", "why", "read_on_at"),
    [
        (at(9), log(10, 20), {}, "the log begins at 10, after 9", 10),
        (at(21), log(10, 20), {}, "the log ends at 20, before 21", 20),
        (at(15), log(10, 20), {PLACE: 12}, "unclean election has replaced the records from 12", 12),
        (at(15), log(10, 20), {PLACE: 7}, "unclean election", 10),
        (at(21), log(10, 20), {PLACE: 12}, "unclean election", 12),
        (at(30), log(10, 20), {PLACE: 25}, "unclean election", 20),
        (at(15, "older"), log(0, 20), {}, "was deleted and created again", 0),
    ],
)
def test_what_is_missing_is_told_and_where_it_goes_on(
    begin: Offsets, now: Log, lost_from: dict[tuple[str, int], int], why: str, read_on_at: int
) -> None:
    (loss,) = losses(begin, now, lost_from)
    assert why in loss.why
    assert loss.read_on_at == read_on_at
    goes_on = read_on(begin, [loss], now)
    assert goes_on.positions == {PLACE: LogPosition(read_on_at)}
    assert goes_on.topic_ids == {"clicks": "id"}


def test_a_partition_that_has_come_is_read_from_its_beginning_and_guarded_like_the_others() -> None:
    begin = Offsets({("views", 0): LogPosition(3, 1)}, {"views": "v"})
    until = Offsets({("views", 0): LogPosition(4, 1), **at(15).positions}, at(15).topic_ids, at(10))
    now = Log(
        {("views", 0): 0, PLACE: 10},
        Offsets(
            {("views", 0): LogPosition(4, 1), **at(20).positions},
            {"views": "v", **at(20).topic_ids},
        ),
    )
    whole = as_planned(begin, until)
    assert whole.positions == {**begin.positions, **at(10).positions}
    assert list(losses(whole, now, {})) == []
    anew = Log(now.beginnings, Offsets(now.ends.positions, {"views": "v", "clicks": "newer"}))
    (loss,) = losses(as_planned(begin, until), anew, {})
    assert (loss.place, loss.read_on_at, loss.is_other_topic) == (PLACE, 10, True)
    gone = Log({("views", 0): 0}, Offsets(begin.positions, begin.topic_ids))
    (loss,) = losses(as_planned(begin, until), gone, {})
    assert (loss.place, loss.read_on_at) == (PLACE, None)


@pytest.mark.parametrize("looked_up_again", [at(0), at(60), at(110, "newer")])
def test_a_batch_that_is_repeated_begins_where_it_was_planned(looked_up_again: Offsets) -> None:
    until = Offsets(at(110).positions, at(110).topic_ids, at(0))
    assert as_planned(looked_up_again, until) == at(0)
    (loss,) = losses(as_planned(looked_up_again, until), log(60, 200), {})
    assert loss.why == "the log begins at 60, after 0"


def test_a_batch_without_new_records_reads_nothing_again() -> None:
    end = Offsets(at(110).positions, at(110).topic_ids, at(0))
    assert as_planned(end, end) == end


def test_a_new_partition_of_a_checkpoint_that_does_not_name_its_beginning_begins_at_0() -> None:
    assert as_planned(Offsets({}), at(5)).positions == {PLACE: LogPosition(0)}


def test_what_a_new_partition_has_lost_before_it_was_first_planned_is_missing() -> None:
    assert list(losses_of_new(Offsets({}), {PLACE: 0})) == []
    assert list(losses_of_new(at(3), {PLACE: 60})) == []
    (loss,) = losses_of_new(Offsets({}), {PLACE: 60})
    assert loss.why == "the partition is new, and its log begins at 60 instead of 0"
    assert loss.read_on_at == 60


def test_a_partition_that_is_gone_is_left_out() -> None:
    nothing = Log({}, Offsets({}))
    (loss,) = losses(at(5), nothing, {})
    assert loss.read_on_at is None
    assert read_on(at(5), [loss], nothing).positions == {}


@pytest.mark.parametrize(
    ("until", "why"),
    [
        (at(20), None),
        (at(21), "the log ends at 20, before 21"),
        (at(12), "it was to be read up to 12, and is read from 15 on"),
        (at(20, "older"), "topic 'clicks' was deleted and created again"),
        (Offsets({("views", 0): LogPosition(3, 1)}, {"views": "v"}), None),
    ],
)
def test_what_is_missing_up_to_an_end_is_told(until: Offsets, why: str | None) -> None:
    found = list(losses_before(until, at(15), log(10, 20)))
    assert [loss.why for loss in found] == ([] if why is None else [why])


def test_a_loss_is_an_error_that_says_what_to_do() -> None:
    cause = ValueError("what the client said")
    with pytest.raises(DataLossError, match=r"are gone: clicks-0: why\. Make another\.$") as raised:
        raise_for([Loss(PLACE, "why", 3)], "Make another.", cause)
    assert raised.value.__cause__ is cause
    with pytest.raises(TopicRecreatedError):
        raise_for([Loss(PLACE, "why", 3), Loss(PLACE, "why", 3, is_other_topic=True)], "")


def test_what_to_do_goes_by_what_the_query_is() -> None:
    common = "Nothing was skipped. failOnDataLoss=false goes on with what is there"
    assert what_to_do(Use.BATCH, None) == (
        f"{common}, and so does a DataFrame that is loaded again"
    )
    assert what_to_do(Use.STREAM, None) == f"{common}; a new checkpoint starts over"
    assert what_to_do(Use.STREAM, "etl") == (
        f"{common}; a new checkpoint starts over, once millrace group delete 'etl' has "
        "forgotten the old one"
    )


def test_a_checkpoint_of_other_topics_is_refused() -> None:
    for subscription in (
        Topics(("views", "default/clicks")),
        TopicPattern("cl.*"),
        Partitions(frozenset({("clicks", 7)})),
    ):
        check_is_of_this_query(at(1), subscription)
    for subscription, reads in (
        (Topics(("views", "users")), "subscribe=views,users"),
        (TopicPattern("cl"), "subscribePattern=cl"),
        (Partitions(frozenset({("views", 0)})), "assign=views-0"),
    ):
        check_is_of_this_query(Offsets({}), subscription)
        with pytest.raises(CheckpointError) as raised:
            check_is_of_this_query(at(1), subscription)
        assert f"is of ['clicks'], and the query reads {reads}: give" in str(raised.value)
