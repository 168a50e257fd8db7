"""A disk of its own for a folder that lies on an overlay, as everything in a container does.

Containers' file systems are overlays, and the kernel lays none over another. A sparse file with a
file system takes its place.
"""

from pathlib import Path

from e2e.cluster.commands import run

_BYTES = 64 << 30  # Sparse: what is written is what it takes.


def ensure(folder: Path) -> None:
    """Make a folder that overlays can be laid over, unless it is there.

    Raises:
        CommandError: it cannot be mounted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if run("stat", "--file-system", "--format=%T", folder).strip() != "overlayfs":
        return
    image = _image(folder)
    if not image.exists():
        made = image.with_suffix(".new")
        with made.open("wb") as file:
            file.truncate(_BYTES)
        run("mkfs.xfs", "-q", "-f", made)
        made.rename(image)
    run("mount", "-o", "loop", image, folder)


def remove(folder: Path) -> None:
    """Unmount it, if it is a disk of its own, and delete that."""
    image = _image(folder)
    if image.exists():
        if folder.is_mount():
            run("umount", folder)
        image.unlink()


def _image(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.xfs")
