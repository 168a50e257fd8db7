"""MirrorMaker 2, by which clusters of Kafka are moved: from Apache Kafka, and back to it.

Its three connectors run in a worker of Kafka Connect, at the cluster that is copied to. Topics keep
their names, partitions, keys, headers and settings. Positions of groups are translated: never to
one that is further on, so a group that moves reads nothing too few.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.peers.maven import KAFKA_VERSION
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic
from tests.suites import targets
from tests.suites.command_lines import Bench, Check, CheckedSuite, UnexpectedError
from tests.suites.connect_worker import WAIT_S, libraries, running_worker, until
from tests.suites.suite import Target
from tests.suites.whole_topic import messages_of

ARTIFACTS = ("connect-runtime", "connect-json", "connect-mirror-client", "connect-mirror")
CONNECTORS = {"source": "MirrorSourceConnector", "checkpoint": "MirrorCheckpointConnector"}
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
PARTITIONS = 3
RECORDS = 3000
PROCESSED = 1000
RETENTIONS_MS = ("86400000", "172800000")

_Record = tuple[int, bytes | None, bytes | None, Any]


def _from_kafka(bench: Bench) -> None:
    with _kafka(bench) as kafka:
        _move(bench, kafka, bench.target)


def _to_kafka(bench: Bench) -> None:
    with _kafka(bench) as kafka:
        _move(bench, bench.target, kafka)


@contextmanager
def _kafka(bench: Bench) -> Iterator[Target]:
    folder = bench.folder / bench.prefix
    folder.mkdir()
    with targets.kafka(folder, creates=False) as kafka:
        yield kafka


def _move(bench: Bench, old: Target, new: Target) -> None:
    """Copy a topic that is written meanwhile, and move a group that reads it."""
    topic, group, of_old = bench.topic, bench.group, _admin(old)
    made = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": RETENTIONS_MS[0]})
    of_old.create_topics([made])[topic].result(WAIT_S)
    _write(old, topic, range(RECORDS))
    processed = _read(old, topic, group, PROCESSED)
    with _mirror(bench, old, new):
        until("all is copied", lambda: len(_all(new, topic)) == RECORDS)
        _write(old, topic, range(RECORDS, 2 * RECORDS))
        until("the rest is copied", lambda: len(_all(new, topic)) == 2 * RECORDS)
        until("positions are there", lambda: any(at > 0 for at in _positions(new, topic, group)))
        _set_retention(old, topic, RETENTIONS_MS[1])
        until("settings follow", lambda: _retention(new, topic) == RETENTIONS_MS[1])
    if _all(new, topic) != (before := _all(old, topic)):
        raise UnexpectedError("the copy has other records")
    moved = _read(new, topic, group, len(before))
    if {*processed, *moved} != {*before} or len(moved) == len(before):
        raise UnexpectedError(f"the group read {len(processed)}, then {len(moved)} records")


@contextmanager
def _mirror(bench: Bench, old: Target, new: Target) -> Iterator[None]:
    """Run MirrorMaker."""
    common = {
        "source.cluster.alias": "old",
        "target.cluster.alias": "new",
        "source.cluster.bootstrap.servers": old.bootstrap,
        "target.cluster.bootstrap.servers": new.bootstrap,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": str(new.replication),
        "offset-syncs.topic.location": "target",
        "offset-syncs.topic.replication.factor": str(new.replication),
        "checkpoints.topic.replication.factor": str(new.replication),
        "topics": bench.topic,
        "groups": bench.group,
        "offset.lag.max": "10",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "true",
        **{
            f"{what}.interval.seconds": "1"
            for what in (
                *("refresh.topics", "sync.topic.configs", "refresh.groups"),
                *("emit.checkpoints", "sync.group.offsets"),
            )
        },
    }
    connectors = [
        {
            **common,
            "name": f"{bench.prefix}-{name}",
            "connector.class": f"org.apache.kafka.connect.mirror.{kind}",
            "tasks.max": "2",
        }
        for name, kind in CONNECTORS.items()
    ]
    settings = {
        "bootstrap.servers": new.bootstrap,
        "key.converter": BYTES,
        "value.converter": BYTES,
        "header.converter": BYTES,
        "offset.storage.file.filename": str(bench.folder / f"{bench.prefix}.offsets"),
    }
    with running_worker(bench, ARTIFACTS, "cli.ConnectStandalone", settings, *connectors) as worker:
        worker.wait_until_up()
        yield


def _write(target: Target, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in numbers:
        # Some have no key, and some no value.
        key = b"key-%d" % (number % 100) if number % 3 else None
        value = b"value-%d" % number if number % 7 else None
        producer.produce(topic, value, key, headers={"number": b"%d" % number})
    if producer.flush(WAIT_S):
        raise UnexpectedError("the records were not taken")


def _consumer(target: Target, group: str) -> Any:
    return Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _record(message: Any) -> _Record:
    (header,) = message.headers()
    return message.partition(), message.key(), message.value(), header


def _all(target: Target, topic: str) -> list[_Record]:
    """Return a topic's records, a partition after another; none where there is no such topic."""
    messages = messages_of(_consumer(target, "looks"), topic, WAIT_S)
    return sorted(map(_record, messages), key=lambda record: record[0])


def _read(target: Target, topic: str, group: str, count: int) -> list[_Record]:
    """Have a group read, and commit its positions.

    Args:
        count: it reads so many records at least, of all partitions; or all that are left.
    """
    consumer = _consumer(target, group)
    consumer.subscribe([topic])
    found: list[_Record] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(WAIT_S)
        if message is None:
            raise UnexpectedError(f"the group read {len(found)} records, and then no more")
        if message.error():
            ended.add(message.partition())
            continue
        found.append(_record(message))
        if len(found) >= count and len({record[0] for record in found}) == PARTITIONS:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def _positions(target: Target, topic: str, group: str) -> list[int]:
    consumer = _consumer(target, group)
    asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    try:
        return [found.offset for found in consumer.committed(asked, timeout=WAIT_S)]
    except KafkaException:
        return []  # The coordinator's topic is not there yet.
    finally:
        consumer.close()


def _set_retention(target: Target, topic: str, text: str) -> None:
    entry = ConfigEntry("retention.ms", text, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = _admin(target)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(WAIT_S)


def _retention(target: Target, topic: str) -> str:
    admin = _admin(target)
    (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    settings: Mapping[str, Any] = found.result(WAIT_S)
    return str(settings["retention.ms"].value)


def _admin(target: Target) -> Any:
    return AdminClient({"bootstrap.servers": target.bootstrap})


CHECKS: dict[str, Check] = {"from_kafka": _from_kafka, "to_kafka": _to_kafka}
MIRROR_MAKER = CheckedSuite(
    name="mirror-maker",
    version=KAFKA_VERSION,
    about="MirrorMaker 2: topics with their settings, positions of groups, to Kafka and from it",
    checks=CHECKS,
    fetch=lambda: libraries(*ARTIFACTS),
    timeout_s=WAIT_S,
)
