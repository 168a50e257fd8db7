"""Three brokers as processes of their own, started as a user does: `millrace up --brokers 3`.

`up` starts a broker again that ends, so whoever kills one need not.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROKERS = 3
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
_LOG_LINES_SHOWN = 20


class ClusterProcess:
    """A cluster of three brokers on one data directory.

    Args:
        folder: where its data and its log are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.bootstrap = ""
        """Addresses of all brokers, with commas."""
        self._brokers: dict[str, tuple[str, int]] = {}
        self._log = folder / "brokers.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the brokers and return after how many seconds they were ready.

        Raises:
            RuntimeError: they did not start; the message holds the end of their log.
        """
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "millrace.cli.main", "up"),
                    *("--brokers", str(BROKERS), "--data-dir", str(self.data_dir)),
                    *("--port", "0", "--metrics-port", "-1", "--output", "json"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        announced = self._read_announcement()["brokers"]
        self._brokers = {each["address"]: (each["name"], each["pid"]) for each in announced}
        self.bootstrap = ",".join(self._brokers)
        return time.monotonic() - started

    def kill(self, address: str) -> str:
        """End a broker as a crash would: SIGKILL, without any warning. Return its name."""
        name, pid = self._brokers[address]
        os.kill(pid, signal.SIGKILL)
        return name

    def stop(self) -> int:
        """Stop the brokers gracefully and return the exit code of `millrace up`.

        Raises:
            RuntimeError: they did not stop; they were killed.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the brokers did not stop in {STOP_SECONDS_MAX:.0f} s") from error
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
            raise RuntimeError("the brokers did not start; their log ends with\n" + "\n".join(log))
        return json.loads(line)
