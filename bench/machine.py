"""The machine and commit of a measurement, without names of hosts or paths."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.directories import CHECKOUT, cache_directory
from bench.peers.maven import KAFKA_VERSION, java_version


def describe(data_root: Path | None) -> dict[str, Any]:
    """Return date, commit, processor, memory, file system and versions.

    Args:
        data_root: where the data directories were; None for the cache directory.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "file_system": _file_system((data_root or cache_directory()).resolve()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java_version(),
        "kafka": KAFKA_VERSION,
    }


def sentence(machine: dict[str, Any]) -> str:
    """Return the description as one line for a person."""
    return (
        f"{machine['date']}: {machine['cores']} cores ({machine['processor']}),"
        f" {machine['memory_gb']} GB, {machine['file_system']}, Linux {machine['kernel']},"
        f" Python {machine['python']}, Apache Kafka {machine['kafka']} on Java {machine['java']}."
    )


def _commit() -> str:
    """Return the checkout's commit; with a `+` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`: that of the longest mount point."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1]
