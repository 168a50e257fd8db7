"""Gives a folder on an overlay, as in a container, a disk of its own.

Containers' file systems are overlays, and the kernel does not stack overlays. A sparse file with a
file system takes the folder's place.
"""

from pathlib import Path

from e2e.cluster.commands import run

_BYTES = 64 << 30  # Sparse: only written bytes take space.


def ensure(folder: Path) -> None:
    """Create a folder that can hold overlays, unless it exists.

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
    """Unmount it if it is a disk of its own, and delete that disk."""
    image = _image(folder)
    if image.exists():
        if folder.is_mount():
            run("umount", folder)
        image.unlink()


def _image(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.xfs")
