"""A Spark session in its own process, with the accounts of all its child processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.loads.spark_orders import ANSWER
from bench.peers.maven import spark_kafka_jars
from bench.processes import LoadFailedError, Usage, environment, status_bytes
from demo.spark_program import of_session

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
"""One session serves both sources; all else is default."""


@dataclass(kw_only=True)
class Spark:
    """A running session."""

    process: "subprocess.Popen[bytes]"
    log: Path
    _answers: int = field(default=0, init=False)

    def do(self, what: str, timeout_s: float, **order: Any) -> dict[str, Any]:
        """Execute an order (`bench.loads.spark_orders`), and return its answer.

        Raises:
            LoadFailedError: it failed, or took too long; the message has the end of the log.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # It has ended; the log says why.
            self.process.stdin.write((json.dumps({"what": what, **order}) + "\n").encode())
            self.process.stdin.flush()
        return self.answer(what, timeout_s)

    def answer(self, what: str, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer."""
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None
            text = self.log.read_text(errors="replace")
            answers = [
                line for line in text.rpartition("\n")[0].split("\n") if line.startswith(ANSWER)
            ]
            if len(answers) > self._answers:
                self._answers += 1
                answer: dict[str, Any] = json.loads(answers[-1].removeprefix(ANSWER))
                return answer
            if has_ended or time.monotonic() > deadline:
                problem = "ended" if has_ended else f"took longer than {timeout_s:.0f} s"
                raise LoadFailedError(f"Spark's {what} {problem}:\n{text[-4000:]}")
            time.sleep(0.01)

    def usage(self) -> Usage:
        """Return what the JVM and all Python processes have used so far."""
        ticks = peak = 0
        for pid in self._pids():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(map(int, _stat(pid)[11:15]))  # Its own, and those of ended children.
                peak += status_bytes(pid, "VmHWM")
        return Usage(cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"), peak_rss_bytes=peak)

    def python_workers(self) -> list[int]:
        """Return the processes that run Python tasks; they outlive their tasks."""
        # The daemon that forks them has the same command line.
        alike = {pid for pid in self._pids() if _runs_tasks(pid)}
        return sorted(pid for pid in alike if int(_stat(pid)[1]) in alike)

    def _pids(self) -> list[int]:
        """Return all running processes of the session."""
        return of_session(self.process.pid)


@contextmanager
def running_spark(
    directory: Path, settings: Mapping[str, str], *, keeps_memory: bool = True
) -> Iterator[Spark]:
    """Start a session, and end it with all its processes at the end of the block.

    Args:
        directory: for its files.
        settings: of Spark, over `SETTINGS`; `spark.master` must be there.
        keeps_memory: whether all processes keep freed memory (README, "Moving much data").

    Raises:
        LoadFailedError: it did not start; the message has the end of its log.
        PeerMissingError: Spark's Kafka source is not available.
    """
    directory.mkdir(parents=True)
    log = directory / "spark.log"
    jars = ",".join(map(str, spark_kafka_jars()))
    known = {
        **SETTINGS,
        "spark.jars": jars,
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings,
    }
    variables = {**environment(), "PYSPARK_PYTHON": sys.executable}
    if not keeps_memory:
        variables = {
            name: value for name, value in variables.items() if not name.startswith("MALLOC_")
        }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.loads.spark_orders", json.dumps(known)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=variables,
            start_new_session=True,  # To end the JVM with it.
        )
    try:
        spark = Spark(process=process, log=log)
        spark.answer("start", START_TIMEOUT_S)
        yield spark
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (left := of_session(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)  # The JVM ends after its program, and first removes its files.
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _runs_tasks(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"pyspark.daemon" in command and b"pyspark.worker" in command
    return False


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
