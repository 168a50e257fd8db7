"""A broker with TLS, tokens and rules, and honest clients beside it, for attacks of all kinds."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.abuse import honest
from tests.abuse.attack import Target
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.guarded import token_of
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin
from millrace.core.guard.token_file import new_entry, tokens_to_text

_RULES: Final = """
[[rules]]
who = ["honest"]
may = ["produce", "consume", "describe"]
topics = ["honest/*"]

[[rules]]
who = ["mallory"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact"]
topics = ["mallory/*"]
groups = ["mallory/*"]
transactions = ["mallory/*"]

[[rules]]
who = ["root"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact", "administer"]
topics = ["*/*", "default/__*"]
groups = ["*/*"]
transactions = ["*/*"]
cluster = true
"""
_OF_GRPC: Final = "ExecuteBatchError"
"""gRPC's Python library logs an answer whose caller has gone as if it were a bug."""
_TOPIC: Final = "honest/records"
_HOSTS: Final = ("localhost", "127.0.0.1")
_URI: Final = "spiffe://test/ns/default/cluster/abused/broker/"


class World:
    """One broker, and what is done to it.

    Args:
        folder: of everything; made if it is missing.
        settings: of the broker, beside those of listeners and access.

    Attributes:
        broker: that is attacked.
        target_file: what attackers are given.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._arrived = folder / "arrived"
        self.target_file = folder / "target.json"
        certificates = CertificateFiles(folder / "certificates")
        self._ca = certificates.ca
        own = certificates.make("broker", *_HOSTS, uri=f"{_URI}broker-0")
        self._nameless = certificates.make("nameless")
        (folder / "rules.toml").write_text(_RULES)
        names = ("honest", "mallory", "root")
        entries = [new_entry(token_of(name), name, [], None, b"s" * 16) for name in names]
        (folder / "tokens").write_text(tokens_to_text(entries))
        for name in names:
            (folder / f"{name}.token").write_text(token_of(name))
        self._outside_drpc_port, self._replicas_port = _free_port(), _free_port()
        self._outside_kafka_port = _free_port()
        self.broker = RunningBroker(
            folder / "broker",
            {
                "node.name": "broker-0",
                "access.rules_file": folder / "rules.toml",
                "access.tokens_file": folder / "tokens",
                "listeners.clients.tls_certificate_file": own.certificate,
                "listeners.clients.tls_key_file": own.key,
                "listeners.replicas.tls_certificate_file": own.certificate,
                "listeners.replicas.tls_key_file": own.key,
                "listeners.replicas.tls_client_ca_file": own.ca,
                "listeners.outside.port": 0,
                "listeners.outside_drpc.port": self._outside_drpc_port,
                "listeners.clients_kafka.port": 0,
                "listeners.clients_kafka.namespace": "mallory",
                "listeners.outside_kafka.port": self._outside_kafka_port,
                "listeners.replicas.port": self._replicas_port,
                **(settings or {}),
            },
        )
        self._honest: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        broker = self.broker.start()
        with SyncAdmin(broker.address, **self._settings("root")) as admin:
            admin.create_topic(_TOPIC, 1, 1, {"durability": "replicated"})
            topic = admin.create_topic(
                "mallory/topic", 1, 1, {"durability": "replicated", "max.message.bytes": "1000000"}
            )
            # What docs/security.md advises: who is known, and does too much, is held back alone.
            admin.set_quota("each", principal="", request_percent=10)
            admin.set_quota("honest", principal="honest", request_percent=100)
        self._write_target(topic.topic_id.hex())
        command = [sys.executable, "-m", "tests.abuse.honest", broker.address, _TOPIC]
        command += [str(self._ca), str(self._folder / "honest.token"), str(self._arrived)]
        with (self._folder / "honest.log").open("wb") as log:
            self._honest = subprocess.Popen(command, stderr=log, env=_environment())
        wait_until(self._arrived.exists, "the honest clients begin")
        wait_until(lambda: self._arrived.stat().st_size, "the first record arrives")

    def _settings(self, name: str) -> dict[str, Any]:
        return {"tls_ca_file": str(self._ca), "token_file": str(self._folder / f"{name}.token")}

    def _write_target(self, topic_id: str) -> None:
        broker = self.broker
        Target(
            grpc=broker.address,
            drpc=broker.drpc_address,
            plain_grpc=broker.outside_address,
            plain_drpc=f"127.0.0.1:{self._outside_drpc_port}",
            kafka=broker.kafka_address,
            plain_kafka=f"127.0.0.1:{self._outside_kafka_port}",
            replicas=f"127.0.0.1:{self._replicas_port}",
            page=broker.metrics_address,
            ca_file=str(self._ca),
            certificate_file=str(self._nameless.certificate),
            key_file=str(self._nameless.key),
            token=token_of("mallory"),
            topic_id=topic_id,
        ).write(self.target_file)

    def stop(self) -> None:
        """Leave nothing running."""
        if self._honest is not None:
            self._honest.kill()
            self._honest.wait()
            self._honest = None
        self.broker.abandon()

    def attack(self, name: str, seconds: float) -> "subprocess.Popen[str]":
        """Begin an attack; it attacks when this returns."""
        command = [sys.executable, "-m", "tests.abuse.attacker", name, str(seconds)]
        with (self._folder / "attackers.log").open("a") as log:
            process = subprocess.Popen(
                [*command, str(self.target_file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
            )
        assert process.stdout is not None
        if process.stdout.readline() != "begun\n":
            process.kill()
            process.wait()
            raise RuntimeError(f"the attack {name} did not begin")
        return process

    def delays_ms(self, begin_ns: int, end_ns: int) -> list[float]:
        """Return how long the honest records took that were due in a time.

        One that has not arrived now, and another one that was due after it has not either, took
        until now at least.
        """
        interval = 1_000_000_000 // honest.RATE
        found = {
            due: delay for due, delay in honest.read(self._arrived) if begin_ns <= due < end_ns
        }
        delays = [delay / 1e6 for delay in found.values()]
        missing = (end_ns - begin_ns) // interval - len(delays)
        if missing > 1:
            last = max(found, default=begin_ns)
            now = time.monotonic_ns()
            delays += [(now - last - number * interval) / 1e6 for number in range(1, missing + 1)]
        return delays

    def wait_for(self, due_ns: int, seconds: float) -> bool:
        """Wait until a record has arrived that was due then or later; return whether it has."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            arrived = honest.read(self._arrived)
            if arrived and arrived[-1][0] >= due_ns:
                return True
            time.sleep(0.05)
        return False

    def trouble(self) -> str:
        """Return what is wrong with the broker or its honest clients; empty: nothing is."""
        assert self._honest is not None
        if not self.broker.is_running:
            return f"the broker is gone: {self.broker.log_end()[-500:]}"
        if self._honest.poll() is not None:
            return f"the honest clients ended: {self._said()[-500:]}"
        log = self.broker.log_path.read_text(errors="replace")
        lines = (line for line in log.splitlines() if _OF_GRPC not in line)
        if any("Traceback" in line or '"level": "critical"' in line for line in lines):
            return f"the broker's log has a bug: {self.broker.log_path}"
        return ""

    def _said(self) -> str:
        return (self._folder / "honest.log").read_text(errors="replace")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
