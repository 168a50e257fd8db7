"""The control groups that the pods of each node are in."""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def make(path: str) -> None:
    """Make a group in each hierarchy, unless it is there.

    Args:
        path: such as `/cluster/node1`.
    """
    is_version_2 = _hierarchies() == [_ROOT]
    for hierarchy in _hierarchies():
        group = hierarchy
        for name in path.strip("/").split("/"):
            if is_version_2:  # What a group may use, those above it must hand on.
                offered = (group / "cgroup.controllers").read_text().split()
                wanted = " ".join(f"+{each}" for each in _CONTROLLERS if each in offered)
                (group / "cgroup.subtree_control").write_text(wanted)
            above, group = group, group / name
            group.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":  # Empty at first, and then nothing may run in it.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((above / file).read_text())


def remove(path: str) -> None:
    """Remove a group and those below it, from each hierarchy; nothing may run in them."""
    for hierarchy in _hierarchies():
        top = hierarchy / path.strip("/")
        groups = sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True)
        for group in [*groups, top]:
            if group.is_dir():
                group.rmdir()


def _hierarchies() -> list[Path]:
    """Return where each hierarchy begins; version 2 has one alone."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]
