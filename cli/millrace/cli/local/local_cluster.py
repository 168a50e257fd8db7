"""Several brokers on this machine, each a process of its own, as one cluster.

All of them share one file of metadata and one directory. A broker that does not get ready at first
ends the others, too, since its message says what to do. A broker that ends by itself later is
restarted; when it does not get ready then, the others go on without it. SIGTERM, SIGHUP and Ctrl-C
end all of them cleanly; so does any end of this process: each broker watches a pipe whose other end
is here (`parent_process`).
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final

import click

from millrace.cli.console.stop_signals import stop_signals

PORTS_APART: Final = 10
"""Between the ports of one broker and those of the next."""
_READY_SECONDS_MAX: Final = 120.0
_STOP_SECONDS_MAX: Final = 60.0
_RESTART_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2


_HEADER: Final = """\
# Written by `millrace up --brokers` at each start: changes here are lost. Its options are
# below; other settings are given to `millrace up` as variables, which count over this file, such as
# MILLRACE_BROKER__STORAGE__FILE_HANDLES_MAX=2000.
"""


class StartFailedError(Exception):
    """A broker did not get ready; its own message is on standard error."""


@dataclass(slots=True)
class Ready:
    """The addresses of a broker that is ready."""

    name: str
    pid: int
    address: str
    metrics_address: str | None
    kafka_address: str | None = None


def broker_name(number: int) -> str:
    """Return the name of a broker, from 0."""
    return f"broker-{number}"


def configuration(
    data_dir: Path,
    number: int,
    *,
    brokers: int,
    log_dirs: Sequence[str],
    port: int,
    metrics_port: int,
    kafka_port: int = -1,
    listeners: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    others: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    is_insecure: bool = False,
) -> str:
    """Return the TOML file of one broker.

    Args:
        number: of the broker, from 0.
        brokers: how many the cluster begins with.
        port: of the first broker, for clients; 0: any.
        metrics_port: likewise; -1: none.
        kafka_port: likewise, for clients of Kafka.
        listeners: other settings of them, by their names.
        others: settings of sections that are not here, by their names.
        is_insecure: whether it starts where others reach it in plain text, or without rules.
    """
    apart = number * PORTS_APART
    return _HEADER + "\n".join(
        (
            f"insecure = {json.dumps(is_insecure)}",
            *(
                f"{name}.{inner} = {json.dumps(text)}"
                for name, section in others.items()
                for inner, text in section.items()
            ),
            f"log_dirs = {json.dumps(list(log_dirs))}",
            "[node]",
            f'name = "{broker_name(number)}"',
            "[cluster]",
            f"initial_brokers = {brokers}",
            "[coordination]",
            f"path = {json.dumps(str(data_dir / 'coordination.sqlite'))}",
            "shared = true",
            "[listeners]",
            f"clients.port = {port + apart if port else 0}",
            *(f"{name}.port = 0" for name in ("replicas", "clients_drpc", "replicas_drpc")),
            f"clients_kafka.port = {kafka_port + apart if kafka_port > 0 else kafka_port}",
            *(
                f"{listener}.{name} = {json.dumps(value)}"
                for listener, settings in listeners.items()
                for name, value in settings.items()
            ),
            "[groups]",
            "classic_rebalance_delay_ms = 0",  # People start programs one by one.
            "[metrics]",
            f"port = {metrics_port + apart if metrics_port > 0 else metrics_port}",
            "",
        )
    )


class LocalCluster:
    """The processes of the brokers: `start` them, then `supervise`, and `stop` whatever happened.

    Args:
        paths: of their files of settings.
        output: format of their errors when they do not start.
    """

    def __init__(self, paths: Sequence[Path], output: str) -> None:
        self._paths = paths
        self._output = output
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether a signal came."""
        return self._stopping.is_set()

    def start(self, *, in_turn: bool) -> list[Ready]:
        """Start all brokers; return once clients can connect to each.

        Args:
            in_turn: one after another, for the first time: the cluster numbers them in the order of
                registration, and people expect broker 2 to be `broker-2`.

        Raises:
            StartFailedError: one did not get ready.
        """
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        ready = []
        for path in self._paths:
            self._spawn(path)
            if in_turn:
                ready.append(self._wait_until_ready(path))
        return ready or [self._wait_until_ready(path) for path in self._paths]

    def supervise(self) -> list[str]:
        """Start brokers again that end by themselves, until a signal comes or none is left.

        Returns:
            The names of those that did not get ready again.
        """
        given_up: dict[Path, None] = {}
        while len(given_up) < len(self._paths) and not self._stopping.wait(_LOOK_SECONDS):
            for path, process in list(self._processes.items()):
                if path in given_up or process.poll() is None:
                    continue
                click.echo(
                    f"{path.stem} ended with {process.returncode}; it is started again", err=True
                )
                self._close(process)
                if self._stopping.wait(_RESTART_SECONDS):
                    break
                self._spawn(path)
                try:
                    self._wait_until_ready(path)
                except StartFailedError as error:
                    if not self.is_stopping:
                        given_up[path] = None
                        click.echo(f"{error}; the others go on without it", err=True)
        return [path.stem for path in given_up]

    def stop(self) -> None:
        """Stop all brokers cleanly."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for process in self._processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._close(process)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()

    def _spawn(self, path: Path) -> None:
        command = [sys.executable, "-m", "millrace.cli"]
        self._processes[path] = subprocess.Popen(
            [
                *(*command, "broker", "--config", str(path)),
                *("--stop-with-stdin", "--output", self._output),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _wait_until_ready(self, path: Path) -> Ready:
        process = self._processes[path]
        assert process.stdout is not None
        timer = threading.Timer(_READY_SECONDS_MAX, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise StartFailedError(f"{path.stem} did not start with {path}")
        said = json.loads(line)
        return Ready(
            path.stem,
            said["pid"],
            said["address"],
            said["metrics_address"],
            said["kafka_address"],
        )

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
