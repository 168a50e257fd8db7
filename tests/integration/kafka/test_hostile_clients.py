"""Clients of Kafka's protocol that mean harm: the broker's memory is bounded, nobody else waits.

An honest producer and consumer work beside every test.
"""

import queue
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from tests.fakes.kafka_batches import CODECS, Record, batch_of, compressed, of_bytes, with_fields
from tests.fakes.kafka_ends import request_frame
from tests.integration.kafka.by_hand import Hand, produce_request, wait_for_coordinators
from tests.integration.kafka.ends import KAFKA
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import consumer_group_messages as messages
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin

MIB = 1 << 20
HEARTBEAT: Any = messages.ConsumerGroupHeartbeatRequest
DESCRIBE: Any = messages.ConsumerGroupDescribeRequest
GROWTH_MAX = 128 * MIB
SLOWEST_MAX_SECONDS = 15.0
"""As of the clients by gRPC: far below the time for which the attackers hold on."""
PATIENCE_SECONDS = 60.0
PARTITIONS = 200
SETTINGS: dict[str, object] = {
    **KAFKA,
    "limits.message_bytes_max": MIB,
    "limits.batch_inflated_bytes_max": MIB,
    "limits.fetch_response_bytes_max": 512 << 10,
    "limits.connection_request_memory_bytes_max": 4 * MIB,
    "limits.request_memory_bytes_max": 16 * MIB,
    "limits.incomplete_bytes_max": 32 * MIB,
    "limits.connections_per_host_rate_max": 1_000_000,
    "limits.message_ms_max": 2000,
    "groups.classic_rebalance_delay_ms": 0,
    "groups.classic_group_bytes_max": MIB,
    "groups.classic_partition_bytes_max": MIB,
}


class Speaker(Hand):
    """A producer by hand, honest or not."""

    def produce(self, topic: str, batch: bytes) -> int:
        """Return the code of the answer to a batch."""
        found = self.ask(ApiKey.PRODUCE, 9, produce_request(topic, batch))
        return int(found.responses[0].partition_responses[0].error_code)


def fetch_request(topic: str) -> Any:
    kind: Any = FetchRequest.FetchTopic
    asked = kind.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=MIB, current_leader_epoch=-1
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=MIB,
        session_id=0,
        session_epoch=-1,
        topics=[kind(topic=topic, partitions=[asked])],
        forgotten_topics_data=[],
    )


class Honest:
    """A client that behaves, and notices when it is not served."""

    def __init__(self, broker: RunningBroker) -> None:
        self.slowest, self.done = 0.0, 0
        self.failures: list[BaseException] = []
        self._broker = broker
        self._ended = threading.Event()

    def run(self) -> None:
        """Write a batch, over and over."""
        try:
            hand = Speaker(self._broker)
            while not self._ended.wait(0.02):
                begun = time.monotonic()
                assert hand.produce("honest", batch_of([Record()])) == 0
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.done += 1
            hand.close()
        except BaseException as error:
            self.failures.append(error)

    def end(self) -> None:
        """Have `run` return."""
        self._ended.set()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The broker that all of them attack."""
    running = RunningBroker(tmp_path_factory.mktemp("attacked"), SETTINGS).start()
    with SyncAdmin(running.address) as admin:
        admin.create_topic("honest", 1, 1)
        admin.create_topic("attacked", PARTITIONS, 1)
    with_records = Speaker(running)
    for _ in range(4):
        assert with_records.produce("honest", batch_of([Record(bytes(500_000))])) == 0
    wait_for_coordinators(with_records)
    with_records.close()
    yield running
    log = running.log_path.read_text()
    assert "Traceback" not in log, running.log_end()
    assert '"call_failed"' not in log, running.log_end()
    assert running.stop() == 0


@pytest.fixture
def hands(broker: RunningBroker) -> Iterator[Any]:
    """Opens connections, which are closed in the end."""
    with ExitStack() as opened:

        def connect() -> Speaker:
            hand = Speaker(broker)
            opened.callback(hand.close)
            return hand

        yield connect


@pytest.fixture(autouse=True)
def honest(broker: RunningBroker) -> Iterator[Honest]:
    """Hold every test to what must stay true."""
    client = Honest(broker)
    thread = threading.Thread(target=client.run)
    thread.start()
    wait_until(lambda: client.done or client.failures, "the honest client is served before")
    before = broker.rss_bytes()
    yield client
    grown, done = broker.rss_bytes() - before, client.done
    wait_until(lambda: client.done > done or client.failures, "and after")
    client.end()
    thread.join()
    assert not client.failures, client.failures
    assert client.slowest < SLOWEST_MAX_SECONDS
    assert grown < GROWTH_MAX, f"the broker grew by {grown >> 20} MiB"


# --- Connections -----------------------------------------------------------------------------


def test_clients_that_never_read_are_not_answered_without_end(hands: Any, honest: Honest) -> None:
    frame = request_frame(ApiKey.FETCH, 12, fetch_request("honest"))
    for _ in range(30):
        hands().socket.sendall(frame * 200)
    done = honest.done
    wait_until(lambda: honest.done > done + 50, "it works on", PATIENCE_SECONDS)


def test_many_half_frames_take_no_more_than_is_allowed(hands: Any, honest: Honest) -> None:
    for _ in range(50):
        hand = hands()
        hand.socket.settimeout(1)
        try:
            hand.socket.sendall(struct.pack(">i", MIB) + bytes(MIB - 1))
        except (TimeoutError, ConnectionError):
            continue  # It is not read on, or it is ended.
    done = honest.done
    wait_until(lambda: honest.done > done + 50, "it works on", PATIENCE_SECONDS)


@pytest.mark.timeout(300)
def test_many_pipelined_requests_are_answered_in_their_order_and_others_meanwhile(
    hands: Any, honest: Honest
) -> None:
    hand, done = hands(), honest.done
    frames = b"".join(
        request_frame(ApiKey.API_VERSIONS, 0, b"", correlation_id=number) for number in range(1000)
    )
    ahead: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    sender = threading.Thread(
        target=lambda: [hand.socket.sendall(some) for some in iter(ahead.get, None)]
    )
    sender.start()
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    asked = answered = 0
    try:
        # Thousands of requests lie ahead all the time; a slow disk writes little in fifty rounds.
        while asked < 50 or (honest.done <= done + 20 and time.monotonic() < deadline):
            ahead.put(frames)
            asked += 1
            while answered < asked - 5:
                read_round(hand)
                answered += 1
        assert honest.done > done + 20
        while answered < asked:
            read_round(hand)
            answered += 1
    finally:
        ahead.put(None)
        sender.join()


def read_round(hand: Hand) -> None:
    """Read the answers to a thousand requests, in their order."""
    for number in range(1000):
        assert struct.unpack_from(">i", hand.frame() or b"") == (number,)


@pytest.mark.parametrize("length", [2**31 - 1, MIB + 100, 3, -1])
def test_a_frame_of_an_impossible_length_ends_the_connection(hands: Any, length: int) -> None:
    hand = hands()
    hand.socket.sendall(struct.pack(">i", length) + b"\0\3\0\1")
    assert hand.frame() is None


# --- Lists -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2**31 - 1, 1 << 24, -2, -(2**31)])
@pytest.mark.parametrize(
    ("key", "version", "before"),
    [
        (ApiKey.METADATA, 1, b""),
        (ApiKey.PRODUCE, 3, struct.pack(">hhi", -1, 1, 1000)),
        (ApiKey.FETCH, 4, struct.pack(">iiiib", -1, 0, 0, 100, 0)),
        (ApiKey.LIST_OFFSETS, 1, struct.pack(">i", -1)),
        (ApiKey.DESCRIBE_GROUPS, 0, b""),
        (ApiKey.LEAVE_GROUP, 3, struct.pack(">h", 1) + b"g"),
        (ApiKey.OFFSET_FETCH, 1, struct.pack(">h", 1) + b"g"),
        (ApiKey.CREATE_TOPICS, 2, b""),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else None,
)
def test_a_list_that_the_bytes_do_not_hold_ends_the_connection(
    hands: Any, key: ApiKey, version: int, before: bytes, count: int
) -> None:
    hand = hands()
    body = before + struct.pack(">i", count) + bytes(200)
    hand.socket.sendall(request_frame(key, version, body))
    assert hand.frame() is None


def test_a_group_that_is_named_often_is_told_once(hands: Any, honest: Honest) -> None:
    hand = hands()
    committed: Any = OffsetCommitRequest.OffsetCommitRequestTopic
    commit = OffsetCommitRequest(
        group_id="told",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            committed(
                name="attacked",
                partitions=[
                    committed.OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=1, committed_metadata="x" * 500
                    )
                    for number in range(PARTITIONS)
                ],
            )
        ],
    )

    def is_committed() -> bool:
        (told,) = hand.ask(ApiKey.OFFSET_COMMIT, 8, commit).topics
        return {each.error_code for each in told.partitions} == {0}

    wait_until(is_committed, "the coordinator's topic is there")
    kind: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    asked = OffsetFetchRequest(groups=[kind(group_id="told", topics=None)] * 9000)
    (group,) = hand.ask(ApiKey.OFFSET_FETCH, 8, asked).groups
    assert len(group.topics[0].partitions) == PARTITIONS
    described = hand.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["told"] * 1000))
    assert len(described.groups) == 1
    of_ours: Any = messages.ConsumerGroupDescribeRequest
    described = hand.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, of_ours(group_ids=["told"] * 1000))
    assert len(described.groups) == 1
    of_ids = DescribeTransactionsRequest(transactional_ids=["told"] * 1000)
    described = hand.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, of_ids)
    assert len(described.transaction_states) == 1


# --- Groups ----------------------------------------------------------------------------------


def join(hand: Hand, group: str, metadata: bytes) -> Any:
    kind: Any = JoinGroupRequest.JoinGroupRequestProtocol
    return hand.ask(
        ApiKey.JOIN_GROUP,
        2,
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=1000,
            member_id="",
            protocol_type="own",
            protocols=[kind(name="p", metadata=metadata)],
        ),
    )


@pytest.mark.parametrize("pattern", ["(", "a)|(?:.*", "a)|(.*"])
def test_a_pattern_of_topics_does_not_leave_its_namespace(hands: Any, pattern: str) -> None:
    of_ours: Any = messages.ConsumerGroupHeartbeatRequest
    told = hands().ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        of_ours(
            group_id="patterns",
            member_id=f"member-{len(pattern)}",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=None,
            subscribed_topic_regex=pattern,
            topic_partitions=[],
        ),
    )
    assert told.error_code == Code.INVALID_GROUP_ID, told


def test_descriptions_of_groups_of_kip_848_are_bounded(hands: Any) -> None:
    hand = hands()
    names = [f"wordy-{number}" for number in range(8)]
    for name in names:
        joining = HEARTBEAT(
            group_id=name,
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[f"{number:0240}" for number in range(1000)],
            topic_partitions=[],
        )
        told = hand.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joining)
        assert told.error_code == 0, told
    groups = hand.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, DESCRIBE(group_ids=names)).groups
    codes = [group.error_code for group in groups]
    assert codes == sorted(codes)
    assert 0 < codes.count(0) < len(names)
    assert codes[-1] == Code.INVALID_REQUEST


def test_groups_whose_members_say_much_do_not_fill_the_memory(hands: Any) -> None:
    hand = hands()
    codes = {join(hand, f"large-{number}", bytes(900_000)).error_code for number in range(400)}
    assert codes == {0, Code.GROUP_MAX_SIZE_REACHED}


# --- Records ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CODECS[1:])
def test_a_bomb_is_refused(hands: Any, kind: str, broker: RunningBroker) -> None:
    bomb = of_bytes(compressed(kind, bytes(64 * MIB)), 1, kind)
    if len(bomb) > MIB - 1000:
        pytest.skip("it does not fit into a request")
    hand = hands()
    for _ in range(20):
        assert hand.produce("attacked", bomb) == Code.MESSAGE_TOO_LARGE


GOOD = batch_of([Record(b"a"), Record(b"b")])


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (with_fields(GOOD, record_count=1), Code.INVALID_RECORD),
        (with_fields(GOOD, record_count=3), Code.INVALID_RECORD),
        (with_fields(GOOD, record_count=0), Code.INVALID_RECORD),
        (with_fields(GOOD, record_count=-1), Code.INVALID_RECORD),
        (with_fields(GOOD, record_count=2**31 - 1), Code.MESSAGE_TOO_LARGE),
        (with_fields(GOOD, last_offset_delta=5), Code.INVALID_RECORD),
        (with_fields(GOOD, last_offset_delta=-1), Code.INVALID_RECORD),
        (with_fields(GOOD, crc=1), Code.CORRUPT_MESSAGE),
        (with_fields(GOOD, batch_length=2**31 - 1), Code.CORRUPT_MESSAGE),
        (with_fields(GOOD, batch_length=-1), Code.CORRUPT_MESSAGE),
        (with_fields(GOOD, magic=0), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (with_fields(GOOD, magic=1), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (with_fields(GOOD, magic=3), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (with_fields(GOOD, attributes=5), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (with_fields(GOOD, attributes=0x20), Code.INVALID_RECORD),
        (with_fields(GOOD, attributes=0x08), Code.INVALID_TIMESTAMP),
        (with_fields(GOOD, base_timestamp=-(2**63)), Code.INVALID_TIMESTAMP),
        (with_fields(GOOD, producer_id=5), Code.INVALID_RECORD),
        (GOOD + b"\0", Code.CORRUPT_MESSAGE),
        (GOOD[:61], Code.CORRUPT_MESSAGE),
        (b"", Code.INVALID_RECORD),
    ],
)
def test_a_batch_that_is_wrong_is_refused_as_kafkas_clients_know_it(
    hands: Any, batch: bytes, code: int
) -> None:
    hand = hands()
    assert hand.produce("attacked", batch) == code
    assert hand.produce("honest", GOOD) == 0
