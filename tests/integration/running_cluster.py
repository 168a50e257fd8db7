"""Brokers of one cluster, each a process of its own, that share a file of metadata."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.running_broker import RunningBroker

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer, TopicDescription
from millrace.core.ids import BrokerId

BROKERS = 3


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return the values of a topic's first records."""
    found: list[bytes] = []
    with SyncConsumer(bootstrap) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append(record.value)
            if len(found) == count:
                return found
    raise AssertionError(f"only {len(found)} records came")


def write_numbers(bootstrap: str, topic: str, numbers: range, **settings: Any) -> None:
    """Write numbers as texts, and have each acknowledged."""
    with SyncProducer(bootstrap, **settings) as producer:
        for handle in [producer.send(topic, b"%d" % number) for number in numbers]:
            handle.result(60)


class RunningCluster:
    """The processes of one cluster. Brokers register in their order, so each has its number as its
    id.

    Args:
        folder: where everything is kept.
        settings: of all brokers, by dotted names.
        racks: the zone of each broker.
        media: of each broker, what its log directories lie on; one directory, where it is empty.
            None: so of all.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        racks: tuple[str, ...] = ("",) * BROKERS,
        media: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self.brokers = [
            RunningBroker(
                folder / f"broker-{number}",
                {
                    "node.name": f"broker-{number}",
                    "node.rack": rack,
                    "coordination.path": folder / "coordination.sqlite",
                    "coordination.shared": "true",
                    **(settings or {}),
                },
                log_dirs=[
                    folder / f"broker-{number}" / f"{kind}-{index}"
                    for index, kind in enumerate(kinds)
                ],
                media=kinds,
            )
            for number, (rack, kinds) in enumerate(
                zip(racks, media or ((),) * len(racks), strict=True)
            )
        ]

    def start(self) -> "RunningCluster":
        """Start all; return once clients can connect to each."""
        for broker in self.brokers:
            broker.start()
        return self

    def __enter__(self) -> "RunningCluster":
        """Start all for the block, and leave nothing running."""
        try:
            return self.start()
        except BaseException:
            self.abandon()
            raise

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Leave nothing running, whatever happened before."""
        for broker in self.brokers:
            broker.abandon()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.address for broker in self.brokers)

    def create_topic(self, name: str, *arguments: Any, **more: Any) -> TopicDescription:
        """Create a topic; arguments as of `Admin.create_topic`."""
        with SyncAdmin(self.bootstrap) as admin:
            return admin.create_topic(name, *arguments, **more)

    def at(self, address: str) -> RunningBroker:
        """Return the broker that clients reach there."""
        return next(broker for broker in self.brokers if broker.address == address)

    def named(self, name: str) -> RunningBroker:
        """Return a broker by its stable name."""
        return next(broker for broker in self.brokers if broker.settings["node.name"] == name)

    def __getitem__(self, broker_id: BrokerId | int) -> RunningBroker:
        return self.brokers[broker_id]
