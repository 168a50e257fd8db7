"""A cluster of Spark on this machine, whose executors are on several hosts, as Spark sees it.

Spark runs a second attempt of a task on another host alone, and never with the masters `local` and
`local-cluster`. So each worker has an address of the loopback network of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark
from demo.spark_program import JAVA_OPTIONS
from tests.integration.running_broker import wait_until

WORKERS = 2
START_SECONDS_MAX = 60.0
_SPARK_HOME = Path(pyspark.__file__).parent
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Run a master, and workers with a core each; yield the master's address.

    Args:
        folder: for logs, and the workers' files.
    """
    processes: list[subprocess.Popen[bytes]] = []
    log_path = folder / "cluster.log"
    with log_path.open("wb") as log:
        try:
            processes.append(_start(log, folder, "master.Master", "--host", "127.0.0.1"))
            wait_until(lambda: _STARTED.search(_said(log_path)), "a master", START_SECONDS_MAX)
            found = _STARTED.search(_said(log_path))
            assert found is not None
            for number in range(1, WORKERS + 1):
                options = ("--host", f"127.0.0.{number}", "--cores", "1", "--memory", "768m")
                work = ("--work-dir", str(folder / f"worker-{number}"))
                worker = _start(log, folder, "worker.Worker", *options, *work, found[1])
                processes.append(worker)
            wait_until(
                lambda: _said(log_path).count("Successfully registered with master") == WORKERS,
                "workers",
                START_SECONDS_MAX,
            )
            yield found[1]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(START_SECONDS_MAX)


def _start(log: IO[bytes], folder: Path, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            str(_SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *("--port", "0", "--webui-port", "0"),
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=os.environ
        | {
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
        },
    )


def _said(log_path: Path) -> str:
    return log_path.read_text(errors="replace")
