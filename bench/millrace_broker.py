"""One Millrace broker as a process, with a fresh or a given data directory."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.processes import announced, by_protocol, start, stop

from millrace.client import SyncAdmin

START_TIMEOUT_S = 60

CONFIG = """\
log_dirs = {log_dirs}
[node]
name = "bench"
[coordination]
path = "{directory}/coordination.sqlite"
[listeners]
clients.port = 0
replicas.port = 0
clients_drpc.port = 0
replicas_drpc.port = 0
[metrics]
port = 0
[logging]
level = "warning"
[cluster]
deleted_topic_retention_ms = 0
positions_durability = "replicated"
transactions_durability = "replicated"
[storage]
trash_delay_ms = 1000
retention_check_interval_ms = 1000
"""
"""All else is default. As with Kafka here, files of deleted topics disappear quickly, and what
coordinators keep is acknowledged from the page cache."""


@dataclass(frozen=True, kw_only=True)
class Millrace:
    """A running broker.

    Attributes:
        address: where clients begin, by gRPC.
        drpc_address: where they reach it by DRPC.
        metrics_address: of its metrics page.
        pid: its process.
        outside_address: of its listener for clients outside; empty: there is none.
        kafka_address: where Kafka's clients reach it; empty: nowhere.
        security: settings that its clients need.
    """

    address: str
    drpc_address: str
    metrics_address: str
    pid: int
    outside_address: str = ""
    kafka_address: str = ""
    security: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The broker's process."""
        return (self.pid,)

    @property
    def metrics_addresses(self) -> tuple[str, ...]:
        """Where its metrics page is."""
        return (self.metrics_address,)

    def by_protocol(self, connections: Mapping[str, float]) -> Mapping[str, float]:
        """Return a client's connections, which are given by port, by protocol."""
        return by_protocol(connections, self.address)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; it has its leaders when this returns."""
        with SyncAdmin(self.address, **self.security) as admin:
            admin.create_topic(name, partitions, 1, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files disappear a second later."""
        with SyncAdmin(self.address, **self.security) as admin:
            admin.delete_topic(name)


@contextmanager
def running_millrace(
    directory: Path,
    *,
    storage: str = "",
    outside: str = "",
    kafka_listener: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
    access: str = "",
    security: Mapping[str, Any] | None = None,
    media: Sequence[str] = (),
) -> Iterator[Millrace]:
    """Start a broker with its data below `directory`, and stop it at the end of the block.

    Args:
        directory: made if it is missing.
        storage: more lines for `[storage]`.
        outside: lines for `[listeners.outside]`; empty: there is no such listener.
        kafka_listener: whether Kafka's clients reach it, too.
        settings: of the broker's environment.
        access: lines for `[access]`; empty: every caller may do everything.
        security: settings that its clients need.
        media: of each of its log directories; by default it has one of the default media.

    Raises:
        LoadFailedError: it did not start; the message has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "broker.toml"
    log_dirs = json.dumps([f"{kind}:{directory / kind}" for kind in media] or [f"{directory}/log"])
    sections = f"{storage}\n"
    if outside:
        sections += f"[listeners.outside]\n{outside}\n[listeners.outside_drpc]\nport = 0\n"
    if kafka_listener:
        sections += "[listeners.clients_kafka]\nport = 0\n"
    if access:
        sections += f"[access]\n{access}\n"
    config.write_text(CONFIG.format(directory=directory, log_dirs=log_dirs) + sections)
    log = directory / "broker.log"
    log.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "millrace.cli", "broker", "--config", str(config),
        "--output", "json",
    ]  # fmt: skip
    process = start(command, log, settings=settings)
    try:
        said = announced(process, log, "metrics_address", START_TIMEOUT_S)
        yield Millrace(
            address=said["address"],
            drpc_address=said["drpc_address"],
            metrics_address=said["metrics_address"],
            pid=process.pid,
            outside_address=said["outside_address"] or "",
            kafka_address=said["kafka_address"] if kafka_listener else "",
            security=security or {},
        )
    finally:
        stop(process)
