"""A Spark job as a process that can be killed, and how far it is, read from its files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "spark-on-k8s" / "jobs"
LINES_SHOWN = 60
KILL_SECONDS_MAX = 20.0
_POLL_S = 0.002


class Driver:
    """Runs a job: Python, Spark's JVM and its workers, all in a session of their own.

    Args:
        job: which of `JOBS`.
        arguments: of its command line.
        log: where what it says is added.
    """

    def __init__(self, job: str, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        settings = {
            "SPARK_CONF_DIR": str(JOBS / "conf"),
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # It lives briefly.
        }
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS / f"{job}.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env=os.environ | settings,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int:
        """Wait until it ends by itself; return its exit code.

        Raises:
            AssertionError: it did not end in time.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"a job runs for {seconds:.0f} s:\n{self.log_end()}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """End all of it at once, as when its machine is lost; nothing of it is left then."""
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while pids := self._members():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            assert time.monotonic() < deadline, f"these do not end: {pids}"
            time.sleep(_POLL_S)
        self._process.wait()

    def log_end(self) -> str:
        """Return the last lines of what it said."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])

    def _members(self) -> list[int]:
        """Return what runs in its session, whose number is its own until it was waited for."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                # The name stands in parentheses and may hold anything.
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid and fields[0] not in "ZX":
                    found.append(int(path.parent.name))
        return found


class Written:
    """What a query has written: its checkpoint, and Parquet files beside their log.

    A micro-batch is planned (its offsets are in the checkpoint), its tasks write files, these are
    listed in the output's log, and then the batch is committed.
    """

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self._log = self.output / "_spark_metadata"

    def planned(self) -> int:
        """Return the last batch that was planned; -1: none."""
        return max(_numbers(self.checkpoint / "offsets"), default=-1)

    def committed(self) -> int:
        """Return the last batch that was committed; -1: none."""
        return max(_numbers(self.checkpoint / "commits"), default=-1)

    def listed(self) -> int:
        """Return the last batch whose files are in the output's log; -1: none."""
        return max(_numbers(self._log), default=-1)

    def marks(self) -> set[str]:
        """Return all Parquet files, those that nobody lists too: new ones say that tasks write."""
        return {path.name for path in self.output.glob("part-*.parquet")}

    def listed_files(self) -> list[Path]:
        """Return the files that count: the others are of tasks that were killed."""
        batches = _numbers(self._log)
        compact = [number for number in batches if (self._log / f"{number}.compact").exists()]
        first = max(compact, default=0)
        listed: list[Path] = []
        for number in sorted(each for each in batches if each >= first):
            name = f"{number}.compact" if number in compact else str(number)
            version, *entries = (self._log / name).read_text().splitlines()
            assert version == "v1"
            for entry in map(json.loads, entries):
                assert entry["action"] == "add"
                listed.append(self.output / Path(entry["path"]).name)
        return listed

    def leftovers(self) -> int:
        """Return how many files do not count."""
        return len(self.marks() - {path.name for path in self.listed_files()})

    def table(self) -> pa.Table:
        """Return all rows that count."""
        tables = [pyarrow.parquet.read_table(path) for path in self.listed_files()]
        return pa.concat_tables(tables)


def _numbers(folder: Path) -> list[int]:
    names = [path.name.removesuffix(".compact") for path in folder.glob("[0-9]*")]
    return [int(name) for name in names if name.isdigit()]
