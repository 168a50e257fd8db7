"""One side of a comparison: a broker, a client of it, and the client's load.

A side is called with a number of seconds and runs for at least as long. The client is a process of
its own; a producer gets a new topic. The resulting `Run` has the resources of the client from start
to end, and those of the broker in that time.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Run, say
from bench.peers import kafka_tools
from bench.peers.raw_server import RawServer
from bench.processes import (
    LoadFailedError,
    Usage,
    last_json,
    reset_peak,
    run_load,
    run_loads,
    usage,
)
from bench.settings import JAVA_CONSUMER, JAVA_CONSUMER_FETCH_BYTES

GRACE_S = 120
"""How much longer than its time a load may take, for start and flush."""
JOIN_S = 12
"""How long the members of a group may take to start and to join."""
FILL_S_MAX = 600
JAVA_MARGIN = 1.25
"""A Java tool gets more records than its last rate needs, by this factor."""

_numbers = itertools.count()


class Broker(Protocol):
    """A broker of either system, or a cluster of brokers."""

    @property
    def address(self) -> str:
        """Where clients connect; several addresses have commas between them."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of all brokers."""

    def by_protocol(self, connections: Mapping[str, float]) -> Mapping[str, float]:
        """Return a client's connections, which are given by port, by protocol."""

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic that is ready for use."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its files."""


@contextmanager
def fresh_topic(broker: Broker, partitions: int, config: Mapping[str, str]) -> Iterator[str]:
    """Create a topic for the block."""
    name = f"bench-{next(_numbers)}"
    broker.create_topic(name, partitions, config)
    yield name
    broker.delete_topic(name)


def run_client(broker: Broker, module: str, load: Load, log: Path) -> Run:
    """Run one load process against a broker, with the accounts of both.

    Raises:
        LoadFailedError: the load failed or did not end.
    """
    reset_peak(*broker.pids)
    before = usage(*broker.pids)
    printed, used = run_load(command_line(module, load), log, load.seconds + GRACE_S)
    moved = Moved(**last_json(printed))
    return Run(
        moved=moved,
        client=used,
        broker=usage(*broker.pids).since(before),
        connections=_connections(broker, moved),
    )


@dataclass(frozen=True, kw_only=True)
class Produce:
    """A Python client that produces."""

    broker: Broker
    module: str
    way: str
    records_file: Path
    topic_config: Mapping[str, str]
    settings: Mapping[str, Any]
    partitions: int = 4

    def __call__(self, seconds: float) -> Run:
        """Produce for so many seconds to a fresh topic."""
        with fresh_topic(self.broker, self.partitions, self.topic_config) as topic:
            return self.to(topic, seconds)

    def to(self, topic: str, seconds: float, records_max: int = 0) -> Run:
        """Produce to a topic that is there, for so many seconds or until it has so many records."""
        load = Load(
            address=self.broker.address,
            topic=topic,
            partitions=self.partitions,
            seconds=seconds,
            records_file=str(self.records_file),
            way=self.way,
            records_max=records_max,
            settings=dict(self.settings),
        )
        return run_client(self.broker, self.module, load, self.records_file.with_suffix(".log"))

    def fill(self, topic: str, records: int) -> int:
        """Create a topic and fill it for consumers; return how many records it holds."""
        self.broker.create_topic(topic, self.partitions, self.topic_config)
        moved = self.to(topic, FILL_S_MAX, records).moved
        say(f"filled {topic} with {moved.records:,} records in {moved.seconds:.0f} s")
        return moved.records


@dataclass(frozen=True, kw_only=True)
class GroupConsume:
    """The members of a group, each a process of its own, that consume a filled topic, over and
    over."""

    broker: Broker
    module: str
    way: str
    topic: str
    settings: Mapping[str, Any]
    log: Path
    partitions: int
    members: int

    def __call__(self, seconds: float) -> Run:
        """Consume for so many seconds, with a new group."""
        group = f"bench-{next(_numbers)}"
        begin_at = time.monotonic() + JOIN_S
        load = Load(
            address=self.broker.address,
            topic=self.topic,
            partitions=self.partitions,
            seconds=seconds,
            way=self.way,
            settings={**self.settings, "group": group, "begin_at": begin_at},
        )
        commands = [command_line(self.module, load)] * self.members
        reset_peak(*self.broker.pids)
        before = usage(*self.broker.pids)
        ran = run_loads(commands, self.log, JOIN_S + seconds + GRACE_S)
        moved = [Moved(**last_json(printed)) for printed, _ in ran]
        shares = [member.detail["partitions"] for member in moved]
        if sum(shares) != self.partitions or not all(shares):
            raise LoadFailedError(f"the members own {shares} of {self.partitions} partitions")
        return Run(
            moved=Moved(
                records=sum(member.records for member in moved),
                bytes=sum(member.bytes for member in moved),
                seconds=max(member.seconds for member in moved),
            ),
            client=Usage(
                cpu_seconds=sum(used.cpu_seconds for _, used in ran),
                peak_rss_bytes=sum(used.peak_rss_bytes for _, used in ran),
            ),
            broker=usage(*self.broker.pids).since(before),
            connections=_connections(self.broker, *moved),
        )


@dataclass(kw_only=True)
class JavaProduce:
    """Kafka's Java perf tool that produces; its last rate decides its number of records."""

    broker: Broker
    directory: Path
    records_file: Path
    record_bytes: int
    topic_config: Mapping[str, str]
    settings: Mapping[str, str]
    partitions: int = 4
    rate: float = field(default=100_000, init=False)

    def __call__(self, seconds: float) -> Run:
        """Produce for at least so many seconds to a fresh topic."""
        while True:
            with fresh_topic(self.broker, self.partitions, self.topic_config) as topic:
                reset_peak(*self.broker.pids)
                before = usage(*self.broker.pids)
                moved, used = kafka_tools.produce(
                    self.directory,
                    self.broker.address,
                    topic,
                    records_file=self.records_file,
                    record_bytes=self.record_bytes,
                    records=int(self.rate * seconds * JAVA_MARGIN),
                    settings=dict(self.settings),
                    timeout_s=10 * seconds + GRACE_S,
                )
                run = Run(moved=moved, client=used, broker=usage(*self.broker.pids).since(before))
            self.rate = run.records_per_second
            if moved.seconds >= seconds:
                return run


@dataclass(frozen=True, kw_only=True)
class Consume:
    """A Python client that consumes a filled topic, over and over."""

    broker: Broker
    module: str
    way: str
    topic: str
    settings: Mapping[str, Any]
    log: Path
    partitions: int = 4

    def __call__(self, seconds: float) -> Run:
        """Consume for so many seconds."""
        load = Load(
            address=self.broker.address,
            topic=self.topic,
            partitions=self.partitions,
            seconds=seconds,
            way=self.way,
            settings=dict(self.settings),
        )
        return run_client(self.broker, self.module, load, self.log)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A member of a new group that copies a filled topic into another one, exactly once."""

    broker: Broker
    module: str
    topic: str
    records: int
    commit_ms: int
    topic_config: Mapping[str, str]
    log: Path
    partitions: int = 4

    def __call__(self, seconds: float) -> Run:
        """Copy for so many seconds."""
        with fresh_topic(self.broker, self.partitions, self.topic_config) as into:
            load = Load(
                address=self.broker.address,
                topic=self.topic,
                partitions=self.partitions,
                seconds=seconds,
                settings={
                    "group": f"copy-{next(_numbers)}",
                    "into": into,
                    "commit_ms": self.commit_ms,
                    "records": self.records,
                },
            )
            return run_client(self.broker, self.module, load, self.log)


@dataclass(frozen=True, kw_only=True)
class JavaConsume:
    """Kafka's Java perf tool that consumes a filled topic, as often as needed for the time."""

    broker: Broker
    directory: Path
    topic: str
    records: int
    record_bytes: int
    fetch_bytes: int = JAVA_CONSUMER_FETCH_BYTES
    settings: Mapping[str, str] = field(default_factory=lambda: JAVA_CONSUMER)

    def __call__(self, seconds: float) -> Run:
        """Consume for at least so many seconds; the time in which the tool fetches counts."""
        records, elapsed, cpu, peak = 0, 0.0, 0.0, 0
        reset_peak(*self.broker.pids)
        before = usage(*self.broker.pids)
        while elapsed < seconds:
            moved, used = kafka_tools.consume(
                self.directory,
                self.broker.address,
                self.topic,
                records=self.records,
                record_bytes=self.record_bytes,
                fetch_bytes=self.fetch_bytes,
                settings=dict(self.settings),
                timeout_s=10 * seconds + GRACE_S,
            )
            records += moved.records
            elapsed += moved.seconds
            cpu += used.cpu_seconds
            peak = max(peak, used.peak_rss_bytes)
        return Run(
            moved=Moved(records=records, bytes=records * self.record_bytes, seconds=elapsed),
            client=Usage(cpu_seconds=cpu, peak_rss_bytes=peak),
            broker=usage(*self.broker.pids).since(before),
        )


@dataclass(frozen=True, kw_only=True)
class Paced:
    """A producer at a steady rate and a consumer of its records, each a process of its own.

    The `Run` has the consumer's latencies and resources.
    """

    broker: Broker
    module: str
    rate: float
    topic_config: Mapping[str, str]
    settings: Mapping[str, Any]
    """Of the producer."""
    log: Path
    partitions: int = 4
    joined: Callable[[Moved, Moved], Moved] = lambda _, consumed: consumed
    """Makes one of what the producer and the consumer report."""

    def __call__(self, seconds: float) -> Run:
        """Send for so many seconds to a fresh topic."""
        with fresh_topic(self.broker, self.partitions, self.topic_config) as topic:
            commands = [
                command_line(
                    self.module,
                    Load(
                        address=self.broker.address,
                        topic=topic,
                        partitions=self.partitions,
                        seconds=seconds,
                        rate=self.rate,
                        way=way,
                        settings=dict(settings),
                    ),
                )
                for way, settings in (("consume", {}), ("produce", self.settings))
            ]
            before = usage(*self.broker.pids)
            ran = run_loads(commands, self.log, seconds + WARM_UP_S + GRACE_S)
            consumed, produced = (Moved(**last_json(printed)) for printed, _ in ran)
            return Run(
                moved=self.joined(produced, consumed),
                client=ran[0][1],
                broker=usage(*self.broker.pids).since(before),
                connections=_connections(self.broker, consumed, produced),
            )


@dataclass(frozen=True, kw_only=True)
class RawStream:
    """The client of a raw server: the ceiling."""

    server: RawServer
    direction: str
    """produce or fetch."""
    message_bytes: int
    log: Path

    def __call__(self, seconds: float) -> Run:
        """Stream for so many seconds."""
        command = [
            *self.server.client, self.direction, self.server.address, str(self.message_bytes),
            str(seconds),
        ]  # fmt: skip
        reset_peak(self.server.pid)
        before = usage(self.server.pid)
        printed, used = run_load(command, self.log, seconds + GRACE_S)
        return Run(
            moved=Moved(**last_json(printed)),
            client=used,
            broker=usage(self.server.pid).since(before),
        )


def _connections(broker: Broker, *said: Moved) -> Mapping[str, float]:
    """Return the connections by protocol of all processes of a client that say theirs."""
    ports: Counter[str] = Counter()
    for moved in said:
        ports.update(moved.detail.get("connections", {}))
    return broker.by_protocol(ports) if ports else {}
