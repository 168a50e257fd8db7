"""`millrace up` in its own process, and its cluster of three brokers."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BROKERS = 3
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
_LOG_LINES_SHOWN = 20
_SETTINGS = {
    "MILLRACE_BROKER__STORAGE__CLEANER_BACKOFF_MS": "1s",
    "MILLRACE_BROKER__CLUSTER__TRANSACTIONS_PARTITIONS": "1",
}
"""Of the brokers: there is something to compact in the few seconds that a demo lasts, and one of
them coordinates all transactions, so that its death concerns all."""


class UpProcess:
    """`millrace up` on one data directory.

    Args:
        folder: for its data and its log.
    """

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self._log = folder / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *options: str) -> Any:
        """Start it and return its announcement when it is ready.

        Raises:
            RuntimeError: it did not start; the message holds the end of its log.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "millrace.cli", "up", *options),
                    *("--data-dir", str(self.data_dir), "--metrics-port", "-1"),
                    *("--output", "json"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env=_SETTINGS | os.environ,
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS_MAX)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.abandon()
            told = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise RuntimeError("`millrace up` did not start; its log ends with\n" + "\n".join(told))
        return json.loads(line)

    def stop(self) -> int:
        """Stop it gracefully and return its exit code.

        Raises:
            RuntimeError: it did not stop; it was killed.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"`millrace up` did not stop in {STOP_SECONDS_MAX:.0f} s") from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End it as a crash would: SIGKILL, without any warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


class ClusterProcess(UpProcess):
    """Three brokers. A broker that ends is restarted by `millrace up`.

    Attributes:
        bootstrap: addresses of all brokers, with commas.
    """

    bootstrap = ""

    def start(self) -> float:
        """Start the brokers and return the seconds until they were ready.

        Raises:
            RuntimeError: they did not start; the message holds the end of their log.
        """
        started = time.monotonic()
        announced = self.run("--brokers", str(BROKERS), "--port", "0")["brokers"]
        self._names: dict[str, str] = {broker["address"]: broker["name"] for broker in announced}
        self.bootstrap = ",".join(self._names)
        return time.monotonic() - started

    def abandon(self) -> None:
        """Let `millrace up` end its brokers and wait for them; a killed one would not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS_MAX)
        super().abandon()

    def kill(self, address: str) -> str:
        """End the broker that had an address at the start, with SIGKILL; return its name.

        Raises:
            RuntimeError: it does not run.
        """
        return self.kill_named(self._names[address])

    def kill_named(self, name: str) -> str:
        """End a broker with SIGKILL, also one that was restarted; return its name.

        Raises:
            RuntimeError: it does not run.
        """
        config = os.fsencode(self.data_dir / f"{name}.toml")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if config in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    return name
        raise RuntimeError(f"{name} does not run: nothing is left to kill")
