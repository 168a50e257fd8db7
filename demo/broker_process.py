"""The embedded broker as a process of its own, started as a user starts it: `millrace up`."""

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
_LOG_LINES_SHOWN = 20


class BrokerProcess:
    """A broker on one data directory, which keeps its port from start to start.

    Args:
        folder: where its data and its log are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.address = ""
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the broker and return after how many seconds it was ready.

        Raises:
            RuntimeError: it did not start; the message holds the end of its log.
        """
        port = self.address.rpartition(":")[2] or "0"
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "millrace.cli.main", "up"),
                    *("--data-dir", str(self.data_dir), "--port", port, "--metrics-port", "-1"),
                    *("--output", "json"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.address = self._read_announcement()["address"]
        return time.monotonic() - started

    def kill(self) -> None:
        """End the broker as a crash would: SIGKILL, without any warning."""
        assert self._process is not None
        self._process.kill()
        self._reap(self._process)

    def stop(self) -> int:
        """Stop the broker gracefully and return its exit code.

        Raises:
            RuntimeError: it did not stop; it was killed.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the broker did not stop in {STOP_SECONDS_MAX:.0f} s") from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave nothing running, whatever happened before."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _read_announcement(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS_MAX)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.abandon()
            log = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise RuntimeError("the broker did not start; its log ends with\n" + "\n".join(log))
        return json.loads(line)
