"""Child processes of the benchmark: start, resource accounts, and stop by process id.

CPU seconds are user + system time. Peak memory is `VmHWM`, the resident high-water mark of the
running program (and not `ru_maxrss`, which a child inherits from its parent).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, TypeVar

from bench.directories import CHECKOUT

from millrace.cli.allocator import KEPT_BYTES, MMAP_BYTES

T = TypeVar("T")

SAMPLE_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 30
ESTABLISHED = "01"
"""A connection's state in /proc/net/tcp."""


class LoadFailedError(Exception):
    """A child process of the benchmark ended in failure or did not end in time."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that a process has used since its start (or between two readings)."""

    cpu_seconds: float
    peak_rss_bytes: int

    def since(self, earlier: "Usage") -> "Usage":
        """Return the CPU time spent since `earlier`, with the present peak."""
        return Usage(
            cpu_seconds=self.cpu_seconds - earlier.cpu_seconds, peak_rss_bytes=self.peak_rss_bytes
        )


def usage(*pids: int) -> Usage:
    """Read the sum of the accounts of running processes."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return Usage(
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        peak_rss_bytes=sum(status_bytes(pid, "VmHWM") for pid in pids),
    )


def thread_waits(*pids: int) -> dict[int, int]:
    """Return how often each thread of running processes has waited, by thread id.

    Every such wait ends with a wake-up (`voluntary_ctxt_switches`).
    """
    waits = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # It may end at any time.
                status = (task / "status").read_text()
                waits[int(task.name)] = int(
                    status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]
                )
    return waits


def children(pid: int) -> list[tuple[int, list[str]]]:
    """Return the running children of a process, with their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        # One may end at any time; a zombie has no command line.
        with suppress(FileNotFoundError, ProcessLookupError):
            command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if command and int(_stat(int(path.name))[1]) == pid:
                found.append((int(path.name), command))
    return sorted(found)


def _stat(pid: int) -> list[str]:
    # The command name stands in parentheses and may hold any character; fields follow the last one.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def status_bytes(pid: int, field: str) -> int:
    """Return a memory field of /proc/PID/status (`VmRSS`, `VmHWM`), 0 if the process is ending."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def connections(pid: int) -> dict[int, int]:
    """Return how many established TCP connections a process has, by the port of the other side."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It may be closed at any time.
            inodes.add(os.readlink(descriptor))
    found: Counter[int] = Counter()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            if state == ESTABLISHED and f"socket:[{inode}]" in inodes:
                found[int(remote.rpartition(":")[2], 16)] += 1
    return dict(found)


def by_protocol(found: Mapping[str, float], address: str) -> dict[str, float]:
    """Return connections to brokers by protocol: gRPC where clients begin, DRPC elsewhere.

    Args:
        found: by the port of the broker.
        address: where clients begin; several have commas between them.
    """
    protocols = {"gRPC": 0.0, "DRPC": 0.0}
    begins = {each.rpartition(":")[2] for each in address.split(",")}
    for port, number in found.items():
        protocols["gRPC" if port in begins else "DRPC"] += number
    return protocols


def reset_peak(*pids: int) -> None:
    """Reset `VmHWM` of children to the present resident size."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def environment() -> dict[str, str]:
    """Return this process's environment, with the checkout importable.

    All processes keep freed memory (README, "Moving much data"), ours and the peers'.
    """
    search_path = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
        "PYTHONUNBUFFERED": "1",
        "MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    }


def start(
    command: Sequence[str],
    log: Path,
    *,
    stdin: int = subprocess.DEVNULL,
    ends_by: str = "KILL",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one; its output goes to the file `log`.

    util-linux' setpriv, if present, ends it even when this process is killed. A `preexec_fn` would
    instead fork a process that runs gRPC's threads.

    Args:
        ends_by: the signal for that end.
        settings: additions to this process's environment.
    """
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", ends_by, "--"] if setpriv else []
    with log.open("ab") as out:
        return subprocess.Popen(
            [*prefix, *command],
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**environment(), **settings},
        )


def stop(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End a process by SIGTERM, and by SIGKILL after a time-out."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def unwind_on_terminate() -> None:
    """Turn SIGTERM into SystemExit, so that context managers stop what they started."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def run_load(command: Sequence[str], log: Path, timeout_s: float) -> tuple[str, Usage]:
    """Run a load to its end.

    Returns:
        Its output, and its accounts from start to end.

    Raises:
        LoadFailedError: it failed or took longer than `timeout_s`; the message has its last output.
    """
    return run_loads([command], log, timeout_s)[0]


def run_loads(
    commands: Sequence[Sequence[str]], log: Path, timeout_s: float
) -> list[tuple[str, Usage]]:
    """Run several loads at the same time, each to its end; see `run_load`."""
    logs = [log.with_suffix(f".{number}.log") for number in range(len(commands))]
    for path in logs:
        path.unlink(missing_ok=True)
    processes = [start(command, path) for command, path in zip(commands, logs, strict=True)]
    peaks = [0] * len(processes)
    used: list[Usage | None] = [None] * len(processes)
    deadline = time.monotonic() + timeout_s
    try:
        while not all(used):
            for number, process in enumerate(processes):
                if used[number] is not None:
                    continue
                ended, status, resources = os.wait4(process.pid, os.WNOHANG)
                if not ended:
                    peaks[number] = max(peaks[number], status_bytes(process.pid, "VmHWM"))
                    continue
                process.returncode = os.waitstatus_to_exitcode(status)
                used[number] = Usage(
                    cpu_seconds=resources.ru_utime + resources.ru_stime,
                    peak_rss_bytes=peaks[number],
                )
                if process.returncode:
                    raise LoadFailedError(
                        f"{_name(commands[number])} ended with {process.returncode}:\n"
                        + logs[number].read_text(errors="replace")[-4000:].strip()
                    )
            if time.monotonic() > deadline:
                raise LoadFailedError(f"{_name(commands[0])} took longer than {timeout_s:.0f} s")
            time.sleep(SAMPLE_INTERVAL_S)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()
    printed = [path.read_text(errors="replace") for path in logs]
    return [(text, usage) for text, usage in zip(printed, used, strict=True) if usage is not None]


def until(found: Callable[[], T | None], what: str, timeout_s: float, poll_s: float = 0.05) -> T:
    """Call `found` until it returns a result, and return that.

    Args:
        found: returns None while there is no result.
        what: the name of the result.

    Raises:
        LoadFailedError: there was none in time.
    """
    deadline = time.monotonic() + timeout_s
    while (answer := found()) is None:
        if time.monotonic() > deadline:
            raise LoadFailedError(f"{what} did not come in {timeout_s:.0f} s")
        time.sleep(poll_s)
    return answer


def announced(
    process: subprocess.Popen[bytes], log: Path, field: str, timeout_s: float
) -> dict[str, Any]:
    """Return what a process says of itself once it serves: a line of JSON with a field.

    Raises:
        LoadFailedError: it did not; the message has the end of its log.
    """

    def said() -> dict[str, Any] | None:
        printed = log.read_text(errors="replace")
        for line in printed.splitlines():
            if line.startswith("{") and line.endswith("}") and f'"{field}"' in line:
                found: dict[str, Any] = json.loads(line)
                return found
        if process.poll() is not None:
            raise LoadFailedError(f"{log.stem} did not start:\n{printed[-4000:]}")
        return None

    return until(said, f"the start of {log.stem}", timeout_s, 0.005)


def summed_up(module: str, *options: str) -> dict[str, Any]:
    """Run a program of the checkout; return the object on the last line that it prints.

    Raises:
        LoadFailedError: it printed nothing.
    """
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise LoadFailedError(f"{' '.join(command)} ended with {done.returncode}")
    return last_json(done.stdout)


def last_json(printed: str) -> dict[str, Any]:
    """Return the object on the last line that a load printed."""
    answer: dict[str, Any] = json.loads(printed.rstrip().rpartition("\n")[2])
    return answer


def _name(command: Sequence[str]) -> str:
    return " ".join(part for part in command if ":" not in part)[:200]
