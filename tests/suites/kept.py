"""Where what is fetched and built lies: in the user's cache, under the hash of what it is made of.

So a changed pin builds anew, and every checkout finds its own.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def built(name: str, made_of: Iterable[str | bytes], build: Callable[[Path], None]) -> Path:
    """Return the folder of something, built at the first call.

    Args:
        made_of: all that decides what it becomes.
        build: fills the folder that it is called with. It stays where it is: a virtual environment
            has its own path in its programs.
    """
    digest = hashlib.sha256(f"{platform.machine()} {sys.version_info[:2]}".encode())
    for part in made_of:
        digest.update(part.encode() if isinstance(part, str) else part)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"
    folder = cache / f"{name}-{digest.hexdigest()[:12]}"
    complete = folder / ".complete"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another run may be at it.
        if not complete.exists():
            sys.stderr.write(f"millrace: building {name}, once, in {folder}\n")
            shutil.rmtree(folder, ignore_errors=True)  # Half built: a program was ended.
            folder.mkdir()
            build(folder)
            complete.touch()
    return folder
