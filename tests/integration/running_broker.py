"""A real broker in a process of its own, started through the command line, on any free ports."""

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.arch.settings import former_name, last_release
from tests.releases.last import Release

from millrace.client import SyncAdmin, TopicDescription

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
"""Longer than `cluster.controlled_shutdown_wait_ms`, for which a broker waits for the others."""
_LINES_SHOWN = 30
_BALLAST_BYTES = 1 << 20  # By default a test run would take tens of GiB for it.


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Return once `condition()` is true.

    Raises:
        AssertionError: it was not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has at the moment, each another one."""
    with ExitStack() as held:  # Together, so that they differ.
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


class RunningBroker:
    """A broker on one folder; it keeps its ports from start to start.

    Args:
        folder: where its configuration, metadata and logs are kept.
        settings: overrides by dotted names, such as `storage.trash_delay_ms`.
        log_dirs: other places for the logs than `folder`.
        media: what each of these lies on; empty: nobody says.
        wrapper: a command in front of the broker's own, such as env.

    Attributes:
        release: whose code it runs from its next start on; None: this checkout's.
        module: of the command line.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, object] | None = None,
        *,
        log_dirs: Sequence[Path] = (),
        media: Sequence[str] = (),
        wrapper: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log_dirs = list(log_dirs) or [folder / "log"]
        self.media = list(media)
        self.settings = settings or {}
        self.wrapper = wrapper
        self.release: Release | None = None
        self.module = "millrace.cli"
        self.address = ""
        self.outside_address = self.drpc_address = self.metrics_address = ""
        self.tls_address = self.kafka_address = ""
        self.pid = 0
        self.log_path = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RunningBroker":
        """Start it and return once clients can connect.

        It comes back on the ports that it had. Meanwhile somebody may have one for a moment: a
        client that tried to connect, from that very port of all.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (line := self._first_line(deadline - time.monotonic())):
            self.abandon()
            last = self.log_end()
            if not self._lacks_its_port(last) or time.monotonic() > deadline - 10:
                raise RuntimeError(f"the broker did not start; its log ends with\n{last}")
        said = json.loads(line)
        self.address, self.metrics_address = said["address"], said["metrics_address"]
        self.outside_address = said["outside_address"] or ""
        self.drpc_address = said.get("drpc_address") or ""  # The last release has none.
        self.tls_address = said.get("tls_address") or ""
        self.kafka_address = said.get("kafka_address") or ""
        self.pid = said["pid"]
        return self

    def refused_start(self) -> tuple[int, str]:
        """Start it where it must refuse to; return its exit code and all that it ever wrote.

        As in `start`, somebody may have one of its ports for a moment.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            before = len(self._said()) if self.log_path.exists() else 0
            process = self.spawn()
            try:
                process.wait(START_SECONDS_MAX)
            finally:
                process.kill()
                process.communicate()
            said = self._said()
            if not self._lacks_its_port(said[before:]) or time.monotonic() > deadline:
                return process.returncode, said

    def _lacks_its_port(self, said: str) -> bool:
        """Return whether it ended, with these words, as somebody has a port that it had before."""
        return bool(self.address) and "Address already in use" in said

    def _first_line(self, seconds: float) -> bytes:
        """Start the process and return what it says once it serves; nothing: it does not."""
        process = self._process = self.spawn()
        self.pid = 0  # It was the last process's, until this one says its own.
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline() if ready else b""

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start the process without waiting for anything."""
        config = self.folder / "broker.toml"
        log_dirs = [str(path) for path in self.log_dirs]
        if self.media:
            log_dirs = [":".join(kind) for kind in zip(self.media, log_dirs, strict=True)]
        config.write_text(
            f"log_dirs = {json.dumps(log_dirs)}\n"
            f'[coordination]\npath = "{self.folder}/coordination.sqlite"\n'
        )
        settings = {
            "listeners.clients.port": self.address.rpartition(":")[2] or 0,
            "listeners.replicas.port": 0,
            "listeners.clients_drpc.port": self.drpc_address.rpartition(":")[2] or 0,
            "listeners.replicas_drpc.port": 0,
            "metrics.port": (self.metrics_address or "").rpartition(":")[2] or 0,
            "storage.ballast_bytes": _BALLAST_BYTES,
            **self.settings,
        }
        if self.kafka_address:
            settings["listeners.clients_kafka.port"] = self.kafka_address.rpartition(":")[2]
        python, environment = [sys.executable], {}
        if self.release is not None:
            settings = settings_of_last_release(settings)
            python, environment = self.release.python, dict(self.release.environment)
        environment |= {
            "MILLRACE_BROKER__" + name.upper().replace(".", "__"): str(value)
            for name, value in settings.items()
        }
        command = [
            *(*self.wrapper, *python, "-m", self.module),
            *("broker", "--config", str(config), "--output", "json"),
        ]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=os.environ | environment
            )

    def log_end(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._said().splitlines()[-_LINES_SHOWN:])

    def log_has(self, text: str) -> bool:
        """Return whether its log says something."""
        return text in self._said()

    def _said(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGKILL)
        self._reap(self._process)

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Stop it gracefully; return its exit code."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Wait until it ends by itself; return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        finally:
            self.abandon()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the process (SIGSTOP) while the block runs."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def killed_for(self, seconds: float) -> Iterator[None]:
        """Kill it, and start it again so much later, while the block goes on."""
        self.kill()
        restart = threading.Timer(seconds, self.start)
        restart.start()
        try:
            yield
        finally:
            restart.join()

    def __enter__(self) -> "RunningBroker":
        """Start it for the block, and leave nothing running."""
        try:
            return self.start()
        except BaseException:
            self.abandon()
            raise

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Leave nothing running, whatever happened before."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None and self.pid:
                os.kill(self.pid, signal.SIGKILL)
            process.kill()
            self._reap(process)

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def create_topic(self, name: str, *arguments: Any, **more: Any) -> TopicDescription:
        """Create a topic; arguments as of `Admin.create_topic`."""
        with SyncAdmin(self.address) as admin:
            return admin.create_topic(name, *arguments, **more)

    def metrics(self) -> dict[str, float]:
        """Return the metrics page: samples by their names with labels."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def rss_bytes(self) -> int:
        """Return the memory that is resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if "VmRSS" in line)
        return int(kilobytes) << 10

    def threads(self) -> int:
        """Return how many threads it has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def descriptors(self) -> int:
        """Return how many files and connections it has open."""
        return len(self._open_files())

    def first_free_descriptor(self) -> int:
        """Return the number that the next file or connection gets: a process may have none that is
        not below RLIMIT_NOFILE."""
        taken = set(map(int, os.listdir(f"/proc/{self.pid}/fd")))
        return next(number for number in itertools.count() if number not in taken)

    def descriptors_beside_logs(self) -> int:
        """Likewise, but for each log file once: there are as many as records are kept.

        One that is open twice, or was deleted and is still open, counts.
        """
        files = self._open_files()
        folders = tuple(f"{os.path.realpath(path)}/" for path in self.log_dirs)
        logs = {file for file in files if file.startswith(folders) and os.path.exists(file)}
        return len(files) - len(logs)

    def _open_files(self) -> list[str]:
        folder = f"/proc/{self.pid}/fd"
        files = []
        for number in os.listdir(folder):
            with suppress(FileNotFoundError):  # It was closed meanwhile.
                files.append(os.readlink(f"{folder}/{number}"))
        return files

    def partition_directory(self, topic_id: bytes, partition: int = 0) -> Path:
        """Return where a partition's files are."""
        name = f"{topic_id.hex()}-{partition}"
        return next(path / name for path in self.log_dirs if (path / name).exists())


def settings_of_last_release(settings: dict[str, object]) -> dict[str, object]:
    """Return settings by the names that the last release knows, without those that it lacks."""
    known = last_release()
    named = {name if name in known else former_name(name): settings[name] for name in settings}
    return {name: value for name, value in named.items() if name in known}
