"""Finds out by trying which faults this machine can inject, and why not the others."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from enum import Enum
from pathlib import Path

from tests.faults.memory import MemoryLimit
from tests.faults.network import run
from tests.faults.preload import compile_library
from tests.faults.volume import Volume


class Need(Enum):
    """A capability that not every machine has."""

    NAMESPACES = "network namespaces with routing rules"
    THROTTLE = "the token bucket of tc"
    RESETS = "ss -K, which resets connections"
    VOLUMES = "ext4 on loop devices that can be shut down"
    PRELOAD = "a C compiler, for the preloaded library"
    MEMORY = "a memory cgroup"


def missing(wanted: Collection[Need] = tuple(Need)) -> dict[Need, str]:
    """Try capabilities; return why the missing ones do not work."""
    probes = {
        Need.NAMESPACES: _try_namespaces,
        Need.THROTTLE: _try_throttle,
        Need.RESETS: _try_resets,
        Need.VOLUMES: _try_volumes,
        Need.PRELOAD: _try_preload,
        Need.MEMORY: _try_memory,
    }
    reasons = {}
    for need in wanted:
        try:
            probes[need]()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            reasons[need] = f"{need.value}: {str(said).strip()}"
    return reasons


def _need_root() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("only root may")


def _need(*tools: str) -> None:
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        raise RuntimeError(f"{', '.join(absent)} is not installed")


def _in_namespace(script: str) -> None:
    run("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script)


def _try_namespaces() -> None:
    _need_root()
    _need("ip", "unshare", "nsenter", "mount")
    _in_namespace(
        "ip link add bridge0 type bridge; ip link add v0 type veth peer name v1; "
        "ip rule add pref 10 from 10.77.0.1 blackhole"
    )


def _try_throttle() -> None:
    _need_root()
    _need("tc", "ip", "unshare")
    _in_namespace(
        "ip link add v0 type veth peer name v1; "
        "tc qdisc add dev v0 root tbf rate 256kbit burst 4kb latency 200ms"
    )


def _try_resets() -> None:
    _need_root()
    _need("ss", "unshare")
    run("unshare", "--net", "ss", "-K", "dst", "10.77.0.1")


def _try_volumes() -> None:
    _need_root()
    _need("mkfs.ext4", "mount", "umount")
    with tempfile.TemporaryDirectory() as folder:
        volume = Volume(Path(folder) / "volume", 16)
        try:
            if not volume.cut_power():
                raise RuntimeError("a power cut loses nothing")
        finally:
            volume.close()


def _try_preload() -> None:
    _need("cc")
    with tempfile.TemporaryDirectory() as folder:
        compile_library(Path(folder))


def _try_memory() -> None:
    _need_root()
    with MemoryLimit("millrace-faults-probe", 64 << 20):
        pass
