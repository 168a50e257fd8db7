"""A Spark program as a process of its own, and whether there is anything to run one on."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 60.0
_CHECKOUT = Path(__file__).parents[1]
_LOG_LINES_SHOWN = 30


def missing() -> str:
    """Return what Spark lacks here, and how to get it; empty: nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed: run `make demo`"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        return (
            "Spark needs Java 17 or later. On Debian and Ubuntu: "
            "sudo apt-get install openjdk-17-jre-headless"
        )
    return ""


class SparkProgram:
    """A Spark program as a process, with all that it starts.

    Args:
        folder: where its log goes.
        arguments: of Python's: the module and its options.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "spark.log"
        self._arguments = [sys.executable, *arguments]
        self._environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join(
                [
                    *("--master", "local[2]", "--driver-memory", "1g"),
                    *("--conf", "spark.ui.enabled=false"),
                    *("--conf", "spark.sql.shuffle.partitions=2"),
                    *("--conf", "spark.python.unix.domain.socket.enabled=true"),
                    *("--conf", "spark.driver.bindAddress=127.0.0.1"),
                    *("--conf", "spark.driver.host=127.0.0.1"),
                    *("--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"),
                    "pyspark-shell",
                ]
            ),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, for the first time or again."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                cwd=_CHECKOUT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def refuse_ended(self) -> None:
        """Say so if it has ended by itself.

        Raises:
            RuntimeError: it has; the message holds the end of its log.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the Spark program ended; its log ends with\n{self.log()}")

    def log(self) -> str:
        """Return the end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:])

    def stop(self) -> None:
        """Tell it to end, and wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """End it, its JVM and its workers at once, whatever happened before."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
