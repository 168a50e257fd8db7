"""Lags on the wire: columns keep the order of the queries, whatever their topics."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import NotLeaderError
from millrace.core.ids import LeaderEpoch, TopicId, TopicPartition
from millrace.proto.errors import error_to_wire
from millrace.proto.lags import (
    LagQuery,
    MeasuredLag,
    lags_from_wire,
    lags_to_wire,
    queries_to_wire,
)
from millrace.proto.v1.common_pb2 import Error

COUNTS = st.integers(0, 2**63 - 1)
QUERIES = st.builds(
    LagQuery,
    st.builds(
        TopicPartition,
        st.sampled_from([TopicId(bytes([number]) * 16) for number in range(3)]),
        st.integers(0, 2**31 - 1),
    ),
    st.integers(-1, 2**31 - 1).map(LeaderEpoch),
    COUNTS,
)
LAGS = st.builds(MeasuredLag, COUNTS, COUNTS, COUNTS, st.none() | COUNTS)
# Every error has a text: without one, and with its code, an entry repeats the error before it.
REFUSALS = st.text(min_size=1, max_size=9).map(lambda text: error_to_wire(NotLeaderError(text)))


@given(st.lists(QUERIES))
def test_a_request_names_each_topic_once(queries: list[LagQuery]) -> None:
    request = queries_to_wire(queries)
    assert len(set(request.topic_ids)) == len(request.topic_ids)
    columns = (request.partitions, request.current_leader_epochs, request.offsets)
    assert [
        ((request.topic_ids[topic], partition), epoch, offset)
        for topic, partition, epoch, offset in zip(request.topics, *columns, strict=True)
    ] == queries


@given(st.lists(LAGS | REFUSALS))
def test_answers_and_refusals_come_back_in_their_order(answers: list[MeasuredLag | Error]) -> None:
    response = lags_to_wire(answers)
    found = lags_from_wire(response)
    for sent, come, end in zip(answers, found, response.end_offsets, strict=True):
        if isinstance(sent, Error):
            assert end == 0
            assert isinstance(come, NotLeaderError)
            assert come.message == sent.message
        else:
            assert come == sent
