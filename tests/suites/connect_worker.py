"""A worker process of Kafka Connect, and its REST interface."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.kafka import LOG4J_PROPERTIES
from bench.peers.maven import KAFKA_VERSION, fetched, java
from bench.processes import start, stop
from tests.suites.command_lines import Bench, UnexpectedError
from tests.suites.java_checks import LOGGER, OPTIONS

WAIT_S = 120
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


def libraries(*names: str) -> Path:
    """Return the folder of some of Kafka's libraries, and of what they need.

    Raises:
        PeerMissingError: they cannot be fetched here.
    """
    artifacts = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in names]
    return fetched(f"{names[-1]}-{KAFKA_VERSION}", [*artifacts, *LOGGER])


@dataclass(kw_only=True)
class Worker:
    """A process of Connect, with its REST interface."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def ask(self, path: str, method: str = "GET", content: object = None) -> Any:
        """Ask its REST interface, and return the answer, read from JSON.

        Raises:
            UnexpectedError: it refuses.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise UnexpectedError(f"{method} {path}: {error.read().decode()[:300]}") from error

    def wait_until_up(self) -> None:
        """Wait until it answers."""

        def is_up() -> bool:
            if self.process.poll() is not None:
                raise UnexpectedError(f"the worker ended: {self.log.read_text()[-500:]}")
            with suppress(OSError, UnexpectedError):
                return self.ask("/connectors") is not None
            return False

        until("the worker answers", is_up)

    def runs(self, connector: str) -> bool:
        """Whether a connector and all its tasks run."""
        with suppress(UnexpectedError):
            status = self.ask(f"/connectors/{connector}/status")
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            return len(states) > 1 and set(states) == {"RUNNING"}
        return False

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, and wait until it runs."""

        def is_taken() -> bool:
            # It refuses for a moment while its workers share their tasks again.
            with suppress(UnexpectedError):
                self.ask(f"/connectors/{name}/config", "PUT", settings)
                return True
            return False

        until(f"{name} is taken", is_taken)
        until(f"{name} runs", lambda: self.runs(name))


@contextmanager
def running_worker(
    bench: Bench,
    artifacts: Sequence[str],
    main: str,
    settings: Mapping[str, str],
    *connectors: Mapping[str, str],
) -> Iterator[Worker]:
    """Start a process, and stop it orderly at the end of the block.

    Args:
        artifacts: names of those that it needs, see `libraries`.
        main: the class, after `org.apache.kafka.connect.`.
        connectors: properties of those that it begins with.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    properties = {
        "bootstrap.servers": bench.target.bootstrap,
        "key.converter": _STRINGS,
        "value.converter": _STRINGS,
        "offset.flush.interval.ms": "500",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "consumer.auto.offset.reset": "earliest",
        "consumer.metadata.max.age.ms": "1000",
        **settings,
    }
    files = [
        bench.file(f"{port}-{at}.properties", "".join(f"{k}={v}\n" for k, v in of.items()))
        for at, of in enumerate([properties, *connectors])
    ]
    log4j = bench.file("log4j2.properties", LOG4J_PROPERTIES)
    log = bench.folder / f"{bench.test}-{port}.log"
    process = start(
        [
            *(java(), *OPTIONS, f"-Dlog4j2.configurationFile=file:{log4j}"),
            *("-cp", f"{libraries(*artifacts)}/*", f"org.apache.kafka.connect.{main}", *files),
        ],
        log,
    )
    worker = Worker(process=process, log=log, port=port)
    try:
        yield worker
    finally:
        stop(process, WAIT_S)


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds.

    Raises:
        UnexpectedError: it does not hold in time.
    """
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise UnexpectedError(f"not in time: {what}")
        time.sleep(0.2)
