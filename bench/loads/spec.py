"""The order to a load process and its answer, each as one line of JSON.

Every load is a process of its own, so that its CPU time and memory can be measured: `python -m
bench.loads.NAME '{"address": ...}'` runs until its time is over and prints a `Moved`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.processes import connections


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load: address, work, duration, and the settings of its client."""

    address: str
    topic: str
    partitions: int
    seconds: float
    """How long to go on; a producer's flush comes on top of it."""
    records_file: str = ""
    """For producers: one record a line (`bench.records`)."""
    way: str = ""
    """Which of the client's calls to use; the load's module names the choices."""
    records_max: int = 0
    """For producers: end after so many records, at any time; 0: no such end."""
    rate: float = 0
    """Records per second for paced loads; 0: full speed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the client library, by its own names."""

    @property
    def security(self) -> dict[str, Any]:
        """Those settings that every client of the load needs, whatever it does."""
        return {
            name: value
            for name, value in self.settings.items()
            if name.startswith(("tls_", "token_", "ssl.", "security."))
        }

    @property
    def records_path(self) -> Path:
        """Where the records are."""
        return Path(self.records_file)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The records and bytes of a load, and the time from the first record to the last."""

    records: int
    bytes: int
    """Keys and values, without any framing."""
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)
    """More of it, such as `used_since`."""


def used_since(cpu_started: float) -> dict[str, Any]:
    """Return what this process used until now, for the detail of what it moved.

    Args:
        cpu_started: `time.process_time()` at the first record.

    Returns:
        `cpu_seconds`, without the start of the process; and `connections`, those that are open, by
        the port of the other side.
    """
    return {
        "cpu_seconds": time.process_time() - cpu_started,
        "connections": connections(os.getpid()),
    }


def run_from_command_line(load: Callable[[Load], Moved]) -> None:
    """Run `load` as told by the first argument, and print what it moved."""
    print(json.dumps(asdict(load(Load(**json.loads(sys.argv[1]))))), flush=True)


def command_line(module: str, load: Load) -> list[str]:
    """Return the command that runs `bench.loads.<module>` with `load`."""
    return [sys.executable, "-m", f"bench.loads.{module}", json.dumps(asdict(load))]
