"""Who may do nothing learns nothing: of every request, the answer about what there is, and about
what there is not, is the same but for the name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from tests.fakes.kafka_ends import request_frame
from tests.integration.guarded import GuardedBroker
from tests.integration.kafka.ends import KAFKA
from tests.integration.kafka.logging_in import Connection
from tests.integration.kafka.test_hostile_requests import NUMBERS, Sample
from tests.integration.running_broker import wait_until

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.client import SyncAdmin

THERE, NOT_THERE = "orders", "ghosts"
PARTITIONS = 3
SETTINGS: dict[str, object] = {
    **KAFKA,
    "limits.connections_per_host_rate_max": 1_000_000,
    "limits.fetch_wait_ms_max": 100,
}
VARIANTS: dict[str, dict[str, int]] = {
    "plain": {},
    "another partition": dict.fromkeys(
        ("partition", "partition_index", "partition_indexes", "partitions"), PARTITIONS
    ),
    "largest timestamp": {"timestamp": -3},
    "what is elsewhere": {"timestamp": -5},
    "to the end": {"offset": -1},
    "one partition": {"response_partition_limit": 1},
    "grow": {"count": 2},
}
KEYS = [
    key
    for key in ApiKey
    if (key, True) in codec._classes()
    and key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A guarded broker with a topic, a group and a transactional id of the same name."""
    found = GuardedBroker(tmp_path_factory.mktemp("silent"), SETTINGS)
    try:
        found.start()
        token: Path = found.token_file("root")
        with SyncAdmin(found.address, token_file=str(token)) as admin:
            admin.create_topic(THERE, PARTITIONS, 1)
        with Connection(found) as root:
            root.log_in("root", mechanism="SCRAM-SHA-256")
            # Of no member, as by a consumer that assigns itself.
            numbers = NUMBERS | {"generation_id_or_member_epoch": -1, "partition_index": 0}
            commit = Sample(
                ApiKey.OFFSET_COMMIT, 8, THERE, bytes(16), texts={"member_id": ""}, numbers=numbers
            ).body
            begun = InitProducerIdRequest(transactional_id=THERE, transaction_timeout_ms=1000)

            def is_committed() -> bool:
                (topic,) = root.ask(ApiKey.OFFSET_COMMIT, 8, commit).topics
                return {each.error_code for each in topic.partitions} == {0}

            def has_begun() -> bool:
                return bool(root.ask(ApiKey.INIT_PRODUCER_ID, 1, begun).error_code == 0)

            # The coordinators' topics are made by the first question for them.
            wait_until(is_committed, "the group has a position")
            wait_until(has_begun, "the transactional id has a producer")
        yield found
    finally:
        found.abandon()


class Stranger:
    """Asks as somebody whose rights are all in another namespace."""

    def __init__(self, broker: GuardedBroker) -> None:
        self._broker = broker
        self._connection: Connection | None = None

    def answer(self, frame: bytes) -> bytes | None:
        """Return the answer to a request; None: the connection was ended."""
        if self._connection is None:
            self._connection = Connection(self._broker)
            assert self._connection.log_in("owner", mechanism="SCRAM-SHA-256").error_code == 0
        self._connection.send_bytes(frame)
        told = self._connection.frame()
        if told is None:
            self.close()
        return told

    def close(self) -> None:
        """End its connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def stranger(broker: GuardedBroker) -> Iterator[Stranger]:
    found = Stranger(broker)
    yield found
    found.close()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_whether_there_is_something_of_a_name_is_not_told(stranger: Stranger, key: ApiKey) -> None:
    newest = codec.request_class(key).max_version
    answered = 0
    for version in range(newest + 1):
        for name, numbers in VARIANTS.items():
            told = [
                stranger.answer(
                    request_frame(
                        key,
                        version,
                        Sample(
                            key,
                            version,
                            asked,
                            bytes(16),
                            texts={"member_id": ""},
                            numbers={**NUMBERS, **numbers},
                        ).body,
                    ),
                )
                for asked in (THERE, NOT_THERE)
            ]
            if told == [None, None]:
                break  # This version is not served.
            answered += 1
            there, not_there = told
            assert there is not None
            assert there.replace(THERE.encode(), NOT_THERE.encode()) == not_there, (version, name)
    assert answered


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_what_there_is_is_not_listed(stranger: Stranger, key: ApiKey) -> None:
    for version in range(codec.request_class(key).max_version + 1):
        texts = {"member_id": ""}
        numbers = {**NUMBERS, "response_partition_limit": 1}
        for entries in (0, -1):
            body = Sample(
                key, version, "", bytes(16), texts=texts, numbers=numbers, entries=entries
            ).body
            told = stranger.answer(request_frame(key, version, body))
            assert told is None or THERE.encode() not in told, version


def test_an_id_tells_no_name(broker: GuardedBroker, stranger: Stranger) -> None:
    with Connection(broker) as root:
        root.log_in("root", mechanism="SCRAM-SHA-256")
        known = root.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    (there,) = (topic for topic in known if topic.name == THERE)
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=there.topic_id)
    body = DeleteTopicsRequest(topics=[state])
    told = stranger.answer(request_frame(ApiKey.DELETE_TOPICS, 6, body))
    assert told is not None
    assert b"may not delete the topic:" in told
    assert THERE.encode() not in told
