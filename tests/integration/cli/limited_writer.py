"""Writes records in every format into files that may not get so large; writes what was told.

    python -m tests.integration.cli.limited_writer FOLDER

A process of its own, since the limit of file size is one of a process.
"""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from tests.formatted_records import ALL_FORMATS, expected, output, write

from millrace.cli.console.standard_streams import OutputFailure


def told(call: Callable[[], object]) -> str:
    """Return the message of a failure."""
    try:
        call()
    except OutputFailure as failure:
        return failure.message
    return "nothing"


def write_half(file_format: str, path: Path) -> list[str]:
    """Write where only half has room, and more once there is room again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(path, "wb") as file, output(file.fileno()) as stream:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(expected(file_format)) // 2, before[1]))
        messages = [told(lambda: write(file_format, stream))]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        stream.write(b"more")
        messages.append(told(stream.flush))
    return messages


if __name__ == "__main__":
    told_by_format = {kind: write_half(kind, Path(sys.argv[1], kind)) for kind in ALL_FORMATS}
    sys.stdout.write(json.dumps(told_by_format))
