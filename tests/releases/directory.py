"""A data directory as a release leaves it, and what clients find in it.

One broker writes it, with its metadata in a file beside its logs on an SSD and an HDD: records of
idempotent producers in several codecs, with keys, nulls, headers and times; a compacted topic; a
tiered one, whose closed segments lie on the HDD; a trimmed one; a consumer group in the middle of a
topic; positions of another reader; quotas. The archive also has `CONTENT`: what clients of that
release found there. A later release must find the same.

Nothing in it expires: later releases read it years later.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.integration.raw_client import RawClient
from tests.integration.running_broker import RunningBroker, wait_until
from tests.releases.last import ROOT, pack, unpack

from millrace.client import Position, SyncAdmin, SyncConsumer, SyncProducer

FOLDER: Final = ROOT / "tests" / "data" / "directories"
CONTENT: Final = "content.json"
PRODUCER_ID: Final = "producer_id"
"""Beside what `content_of` returns: the last id that the cluster gave to a producer."""
GROUP: Final = "printers"
GROUP_TOPIC: Final = "orders"

_KIND: Final = ".tar.xz"
_MEDIA: Final = ("ssd", "hdd")
_SETTINGS: Final[dict[str, object]] = {
    "storage.tier_free_bytes_min": 0,
    "positions.retention_ms": -1,
    "positions.left_topic_retention_ms": -1,
    "positions.initial_retention_ms": -1,
}
_WHILE_WRITING: Final = {
    "cluster.positions_partitions": 2,
    "storage.cleaner_backoff_ms": 50,
    "storage.tier_check_interval_ms": 50,
    "storage.retention_check_interval_ms": 100,
}
_FOR_EVER: Final = str(2**40)
_KEPT: Final = {"retention.ms": "-1", "segment.bytes": "1MiB", "segment.ms": _FOR_EVER}
_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    GROUP_TOPIC: {"message.timestamp.type": "CreateTime"},
    "events": {"durability": "replicated", "deletion.protection": "true"},
    "states": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": _FOR_EVER,
    },
    "archive": {"media": "tiered", "local.retention.ms": "0"},
    "trimmed": {},
}
_PARTITIONS: Final = 2
_CODECS: Final = ("none", "lz4", "zstd")
_LARGE: Final = 10_000  # Zeros that no codec makes smaller before they are in the archive.
_LARGE_COUNT: Final = 300
_IN_DIRECTORY: Final = ("coordination.sqlite", *_MEDIA)
_READ_SECONDS_MAX: Final = 30.0


def archives() -> list[Path]:
    """Return the directories of all releases that were kept."""
    return sorted(FOLDER.glob(f"*{_KIND}"))


def log_dirs(folder: Path) -> list[Path]:
    """Return where the logs of a directory are: the SSD, the HDD."""
    return [folder / kind for kind in _MEDIA]


def put_back(archive: Path, folder: Path) -> tuple[RunningBroker, dict[str, Any]]:
    """Put a directory where a broker of this checkout will start on it.

    Returns:
        The broker, which is not started, and what must be there.
    """
    unpack(archive, folder)
    return _broker(folder, _SETTINGS), json.loads((folder / CONTENT).read_text())


def keep(version: str) -> None:
    """Write a directory with this checkout, and keep it as that of a release."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder, kept = Path(name, "broker"), Path(name, "kept")
        broker = _broker(folder, _SETTINGS | _WHILE_WRITING)
        try:
            content = _write(broker.start())
            assert broker.stop() == 0, broker.log_end()
        finally:
            broker.abandon()
        kept.mkdir()
        for path in folder.iterdir():
            if path.name.startswith(_IN_DIRECTORY):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, kept / path.name)
        (kept / CONTENT).write_text(json.dumps(content, indent=1))
        pack(kept, FOLDER / f"{version}{_KIND}")


def content_of(bootstrap: str) -> dict[str, Any]:
    """Return all that clients find in a cluster, as it stands in JSON."""
    with SyncAdmin(bootstrap) as admin:
        topics = admin.describe_topics(admin.list_topics())
        groups = [admin.describe_group(group.name) for group in admin.list_groups()]
        return {
            "cluster_id": admin.describe_cluster().cluster_id,
            "topics": {
                name: {
                    "id": topic.topic_id.hex(),
                    "partitions": len(topic.partitions),
                    "config": {
                        setting: found.value
                        for setting, found in sorted(topic.config.items())
                        if found.source == "topic"
                    },
                    "records": _records(bootstrap, name),
                }
                for name, topic in sorted(topics.items())
            },
            "groups": {
                group.name: {
                    "kind": group.kind,
                    "committed": _positions(group.committed),
                    "initial": _positions(group.initial),
                }
                for group in groups
                if group is not None
            },
            "quotas": {
                quota.name: [
                    quota.subject,
                    quota.produce_bytes_per_second,
                    quota.fetch_bytes_per_second,
                    quota.request_percent,
                    quota.per_broker,
                ]
                for quota in admin.list_quotas()
            },
        }


def _broker(folder: Path, settings: dict[str, object]) -> RunningBroker:
    return RunningBroker(folder, settings, log_dirs=log_dirs(folder), media=_MEDIA)


def _write(broker: RunningBroker) -> dict[str, Any]:
    bootstrap = broker.address
    with SyncAdmin(bootstrap) as admin:
        for name, config in _TOPICS.items():
            admin.create_topic(name, partitions=_PARTITIONS, config={**_KEPT, **config})
        for codec in _CODECS:
            with SyncProducer(bootstrap, compression=codec) as producer:
                for number in range(50):
                    for topic in (GROUP_TOPIC, "events", "trimmed"):
                        producer.send(
                            topic,
                            None if number == 20 else f"{topic} {codec} {number} ü".encode(),
                            key=None if number % 3 else b"%d" % number,
                            partition=number % _PARTITIONS,
                            timestamp=1_700_000_000_000 + number,
                            headers=[("codec", codec.encode()), ("none", None)][: number % 3],
                        )
        with SyncProducer(bootstrap, compression="none", batch_size="100KiB") as producer:
            for number in range(_LARGE_COUNT):
                value = b"%06d" % number + bytes(_LARGE)
                for topic in ("archive", "states"):
                    producer.send(topic, value, key=b"%d" % (number % 40), partition=number % 2)
            producer.send("states", None, key=b"7", partition=1)
            producer.send("states", b"the last", key=b"8", partition=0)
        admin.delete_records({("trimmed", 0): 11, ("trimmed", 1): 25})
        admin.set_quota("reports", client_id="report", fetch_bytes_per_second=10_000_000)
        admin.set_quota("others", principal="", produce_bytes_per_second=2**40, per_broker=True)
        admin.resolve_initial("query", {("events", 0): Position(3), ("events", 1): Position(4)})
        admin.commit_positions("query", {("events", 0): Position(30, 0, "batch 5 ü")})
    with SyncConsumer(bootstrap, group=GROUP, auto_offset_reset="earliest") as member:
        member.subscribe([GROUP_TOPIC])
        read = 0
        while read < 60:
            read += len(member.poll(max_records=20))
        member.commit()
    _wait_until_at_rest(broker)
    with RawClient(bootstrap) as client:
        return content_of(bootstrap) | {PRODUCER_ID: client.new_producer_id()}


def _wait_until_at_rest(broker: RunningBroker) -> None:
    """Return once all closed segments are compacted, or have moved to the HDD."""
    wait_until(lambda: len(_segments(broker, "ssd", "archive")) == _PARTITIONS, "all have moved")
    assert _segments(broker, "hdd", "archive")
    with SyncAdmin(broker.address) as admin:

        def is_compacted() -> bool:
            logs = admin.describe_logs("states")
            found = [log.compaction for log in logs if log.compaction is not None]
            return all(log.cleaner_point and not log.dirty_ratio for log in found)

        wait_until(is_compacted, "the closed segments are compacted")


def _segments(broker: RunningBroker, media: str, topic: str) -> list[Path]:
    with SyncAdmin(broker.address) as admin:
        topic_id = admin.describe_topic(topic).topic_id.hex()
    return list((broker.folder / media).glob(f"{topic_id}-*/*.log"))


def _positions(positions: Mapping[tuple[str, int], Position]) -> list[list[Any]]:
    return [
        [*place, position.offset, position.leader_epoch, position.metadata]
        for place, position in sorted(positions.items())
    ]


def _records(bootstrap: str, topic: str) -> dict[str, list[list[Any]]]:
    """Return the records of each partition: offset, time, key, headers, a digest of the value."""
    found: dict[str, list[list[Any]]] = {}
    with SyncConsumer(bootstrap) as consumer:
        consumer.assign([topic], start="beginning")
        deadline = time.monotonic() + _READ_SECONDS_MAX
        while any(left != 0 for left in consumer.lag().values()):
            assert time.monotonic() < deadline, f"{topic}: {consumer.lag()} are not read"
            for record in consumer.poll():
                value = None if record.value is None else sha256(record.value).hexdigest()[:16]
                headers = [[name, text and text.decode()] for name, text in record.headers]
                key = record.key and record.key.decode()
                row = [record.offset, record.timestamp, key, value, headers]
                found.setdefault(str(record.partition), []).append(row)
    return found
