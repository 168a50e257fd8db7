"""The disk's own rate: one program's sequential writes of one size, each followed by fdatasync.

`settings`: `directory` and `write_bytes`. A new file is begun at the size of a segment.
"""

import os
import time
from pathlib import Path

from bench.loads.spec import Load, Moved, run_from_command_line

FILE_BYTES = 1 << 30


def write(load: Load) -> Moved:
    """Write for the load's time."""
    directory = Path(load.settings["directory"])
    data = os.urandom(load.settings["write_bytes"])
    path = directory / "raw-write"
    writes = 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.perf_counter()
    while time.perf_counter() - started < load.seconds:
        if os.write(file, data) != len(data):
            raise SystemExit("a short write: is the disk full?")
        os.fdatasync(file)
        writes += 1
        if writes * len(data) % FILE_BYTES < len(data):
            os.close(file)
            path.unlink()
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    seconds = time.perf_counter() - started
    os.close(file)
    path.unlink()
    return Moved(records=writes, bytes=writes * len(data), seconds=seconds)


if __name__ == "__main__":
    run_from_command_line(write)
