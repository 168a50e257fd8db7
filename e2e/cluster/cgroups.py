"""The control groups of each node's pods."""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def make(path: str) -> None:
    """Create a group in each hierarchy, unless it exists.

    Args:
        path: such as `/cluster/node1`.
    """
    is_version_2 = _hierarchies() == [_ROOT]
    for hierarchy in _hierarchies():
        group = hierarchy
        for name in path.strip("/").split("/"):
            if is_version_2:  # Its parents must delegate what a group may use.
                offered = (group / "cgroup.controllers").read_text().split()
                wanted = " ".join(
                    f"+{controller}" for controller in _CONTROLLERS if controller in offered
                )
                (group / "cgroup.subtree_control").write_text(wanted)
            above, group = group, group / name
            group.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":  # An empty one cannot run a process.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((above / file).read_text())


def remove(path: str) -> None:
    """Remove a group and its children from each hierarchy; no process may run in them."""
    for hierarchy in _hierarchies():
        top = hierarchy / path.strip("/")
        groups = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
        for group in [*groups, top]:
            if group.is_dir():
                group.rmdir()


def _hierarchies() -> list[Path]:
    """Return the root of each hierarchy; version 2 has only one."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]
