"""Every request that is served, with each byte wrong in turn, and with bytes at random.

The requests are laid out by Kafka's schemas, from the fields of the served version: so one that is
served later is attacked, too. Each is answered, or its connection ends; no handler fails, the
broker's memory is bounded, and it goes on.
"""

import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.fakes.kafka_batches import Record, batch_of
from tests.fakes.kafka_ends import request_frame
from tests.integration.guarded import GuardedBroker
from tests.integration.kafka.ends import KAFKA
from tests.integration.kafka.test_hostile_administration import answered, spoilt
from tests.integration.raw_client import RawClient
from tests.integration.running_broker import RunningBroker

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec

SETTINGS: dict[str, object] = {
    **KAFKA,
    "limits.connections_per_host_rate_max": 1_000_000,
    "limits.fetch_wait_ms_max": 100,
    "groups.classic_rebalance_delay_ms": 0,
}
GROWTH_MAX = 128 << 20
NUMBERS = {
    "acks": -1,
    "coordinator_key_type": 0,
    "epoch": -1,
    "generation_id": -1,
    "key_type": 0,
    "max_bytes": 1 << 16,
    "max_wait_ms": 1,
    "partition_max_bytes": 1 << 16,
    "producer_epoch": -1,
    "producer_id": -1,
    "rebalance_timeout_ms": 100,
    "replica_id": -1,
    "resource_type": 2,
    "session_epoch": -1,
    "session_timeout_ms": 6000,
    "timeout_ms": 100,
    "timestamp": -1,
    "transaction_timeout_ms": 1000,
}
TEXTS = {"group_id": "group", "key": "group", "protocol_type": "consumer", "member_id": ""}
NULLS = {"group_instance_id"}
REMOVING = {ApiKey.DELETE_TOPICS, ApiKey.CREATE_TOPICS}
"""Their topic is one that nobody else needs."""
PATIENCE_S = {ApiKey.JOIN_GROUP: 0.1}
"""A request that waits for other members; not in these versions as it is here, but then wrong."""
FIRST = {ApiKey.JOIN_GROUP: 4}
RAW = {ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE}
SIZES = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q"}
AT_RANDOM = 300


def varint(number: int) -> bytes:
    """Return a number without a sign."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


class Sample:
    """Lays out a request.

    Args:
        key: of the request.
        version: of it.
        topic: its texts, but for those of `texts`.
        topic_id: its ids.
        texts: by the names of fields.
        numbers: likewise.
        entries: of each list, 0 or 1.
    """

    def __init__(
        self,
        key: int,
        version: int,
        topic: str,
        topic_id: bytes,
        *,
        texts: Mapping[str, str] = TEXTS,
        numbers: Mapping[str, int] = NUMBERS,
        entries: int = 1,
    ) -> None:
        self.version = version
        self.topic, self.topic_id = topic, topic_id
        self.texts, self.numbers, self.entries = texts, numbers, entries
        found = codec.request_class(key)
        self.is_compact = bool(found.flexible_version_q(version))
        self.body = self._struct(found._struct)

    def _struct(self, struct_field: Any) -> bytes:
        parts = [self._field(field) for field in struct_field.untagged_fields(self.version)]
        return b"".join(parts) + (b"\0" if self.is_compact else b"")

    def _length(self, length: int, kind: str) -> bytes:
        return varint(length + 1) if self.is_compact else struct.pack(kind, length)

    def _field(self, field: Any) -> bytes:
        is_nullable = field.nullable_for_version_q(self.version)
        if field.is_array():
            count = self._length(self.entries, ">i")
            return count + self.entries * self._item(field.array_of, field.name)
        if field.is_struct():
            return (b"\x01" if is_nullable else b"") + self._struct(field)
        if is_nullable and field.name in NULLS:
            return self._length(-1, ">h")
        return self._item(field, field.name)

    def _item(self, field: Any, name: str) -> bytes:
        if field.is_struct():
            return self._struct(field)
        match field.type_str:
            case "string":
                said = self.texts.get(name, self.topic).encode()
                return self._length(len(said), ">h") + said
            case "bytes" | "records":
                records = batch_of([Record(b"v", b"k")])
                return self._length(len(records), ">i") + records
            case "uuid":
                return self.topic_id
            case "bool":
                return b"\0"
            case "float64":
                return struct.pack(">d", 1.0)
            case kind:
                return struct.pack(SIZES[kind], self.numbers.get(name, 0))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, ...]]:
    """A broker whose clients may do everything, and a guarded one."""
    free = RunningBroker(tmp_path_factory.mktemp("free"), SETTINGS).start()
    guarded = GuardedBroker(tmp_path_factory.mktemp("guarded"), SETTINGS).start()
    yield free, guarded
    for broker in (free, guarded):
        broker.abandon()


@pytest.fixture(scope="module")
def topic_id(brokers: tuple[RunningBroker, ...]) -> bytes:
    """The id of the topic `orders`."""
    with RawClient(brokers[0].address) as client:
        return client.create_topic("orders")


def at_random(frame: bytes, seed: str) -> Iterator[bytes]:
    """Yield frames with a few bytes changed, taken out or put in."""
    choose = random.Random(seed)
    for _ in range(AT_RANDOM):
        body = bytearray(frame[16:])
        for _ in range(choose.randrange(1, 5)):
            at = choose.randrange(len(body) + 1)
            body[at : at + choose.randrange(3)] = choose.randbytes(choose.randrange(4))
        yield struct.pack(">i", 12 + len(body)) + frame[4:16] + body


@pytest.mark.parametrize(
    "key", [key for key in ApiKey if (key, True) in codec._classes()], ids=lambda key: key.name
)
def test_whatever_is_wrong_with_a_request_the_broker_goes_on(
    brokers: tuple[RunningBroker, ...], topic_id: bytes, key: ApiKey
) -> None:
    broker = brokers[key in RAW]
    newest = codec.request_class(key).max_version
    topic = "gone" if key in REMOVING else "orders"
    before, rss = broker.log_path.read_text().count('"call_failed"'), broker.rss_bytes()
    valid = [
        request_frame(key, version, Sample(key, version, topic, topic_id).body)
        for version in range(FIRST.get(key, 0), newest + 1)
    ]
    served = [frame for frame in valid if answered(broker, iter([frame]))]
    assert served
    patience_s = PATIENCE_S.get(key, 0)
    for frame in {served[0], served[-1]}:
        answered(broker, spoilt(frame), patience_s)
        answered(broker, at_random(frame, f"{key} {len(frame)}"), patience_s)
        assert answered(broker, iter([frame])) == 1
    said = broker.log_path.read_text()
    assert said.count('"call_failed"') == before, said[-5000:]
    assert "Traceback" not in said
    assert broker.rss_bytes() - rss < GROWTH_MAX
