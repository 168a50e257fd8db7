"""Readers of both isolations at a real broker whose log has transactions.

The log was written by a leader before: here it is put on the disk of a broker that is stopped.
"""

import contextlib
from typing import NamedTuple

import pytest
from tests.fakes.transaction_log import TransactionLog
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker

from millrace.client import Lag, SyncAdmin, SyncConsumer
from millrace.core.ids import LeaderEpoch, TopicPartition
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation
from millrace.core.records.compression import CODEC_NAMES

PLACE = ("orders", 0)


class Stored(NamedTuple):
    """A broker that serves a log with transactions."""

    broker: RunningBroker
    log: TransactionLog


@pytest.fixture
def stored(start_broker: StartBroker) -> Stored:
    """Transactions in every codec, committed and aborted in turn; the last one is open."""
    broker = start_broker()
    topic = broker.create_topic("orders", 1)
    broker.stop()
    place = TopicPartition(topic.topic_id, 0)
    log = TransactionLog(place)
    log.leader_epoch = LeaderEpoch(0)
    for number in range(50):
        codec = CODEC_NAMES[number % len(CODEC_NAMES)]
        for part in range(3):
            log.append([b"%d.%d" % (number, part)] * 20, 1 + number % 7, codec=codec)
            log.append([b"of nobody"], None)
        log.end([1 + number % 7], is_committed=number % 3 > 0)
    log.append([b"open"], 1)
    log.append([b"after it"], None)
    (path,) = broker.folder.rglob(f"{place}/*.log")
    with path.open("ab") as file:
        for _, _, data in log.stored():
            file.write(data)
    return Stored(broker.start(), log)


@pytest.mark.parametrize("isolation", [READ_COMMITTED, READ_UNCOMMITTED])
def test_what_a_consumer_reads(stored: Stored, isolation: Isolation) -> None:
    read_committed = isolation == READ_COMMITTED
    with contextlib.ExitStack() as stack:
        consumer = stack.enter_context(SyncConsumer(stored.broker.address, isolation=isolation))
        admin = stack.enter_context(SyncAdmin(stored.broker.address))
        end = admin.list_offsets("orders", isolation=isolation)[PLACE].offset
        log = stored.log
        assert end == (log.last_stable_offset if read_committed else log.end_offset)
        consumer.assign(["orders"])
        found = []
        while consumer.position(PLACE) < end:
            found += [(record.offset, record.value) for record in consumer.poll(500)]
        assert found == log.seen(0, read_committed=read_committed)
        assert consumer.lag() == {PLACE: 0}
        for start in range(0, end, 97):
            consumer.seek(PLACE, start)
            found = []
            while consumer.position(PLACE) < end:
                found += [(record.offset, record.value) for record in consumer.poll(500)]
            assert found == log.seen(start, read_committed=read_committed)
        lags = {
            read: admin.describe_lags({PLACE: end}, isolation=read)[PLACE]
            for read in (READ_COMMITTED, READ_UNCOMMITTED)
        }
        expected = 2 if read_committed else 0
        assert [lag.records for lag in lags.values() if isinstance(lag, Lag)] == [0, expected]


def test_a_group_has_no_lag_once_it_has_the_last_committed_record(stored: Stored) -> None:
    log = stored.log
    expected = log.seen(0)
    with (
        SyncConsumer(stored.broker.address, group="g", enable_auto_commit=False) as member,
        SyncAdmin(stored.broker.address) as admin,
    ):
        member.subscribe(["orders"])
        found: list[tuple[int, bytes]] = []
        while len(found) < len(expected):
            found += [(record.offset, record.value) for record in member.poll(500)]
        assert found == expected
        after_last = found[-1][0] + 1
        assert after_last < log.last_stable_offset, "the end of a transaction follows"
        for committed in (after_last, None):
            member.commit(None if committed is None else {PLACE: committed})
            group = admin.describe_group("g")
            assert group is not None
            assert group.positions[PLACE] == (committed or log.last_stable_offset)
            lag = admin.describe_lags(group.positions)[PLACE]
            assert isinstance(lag, Lag)
            assert (lag.records, lag.bytes, lag.milliseconds) == (0, 0, 0)
