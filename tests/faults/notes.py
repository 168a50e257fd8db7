"""What clients in several processes did: each has a list or a file of its own, put together later.

A line of a file is that of a history (`tests.checkers.history`). The clock is the same in all
processes of a machine, so the time says the order.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from tests.checkers.history import Op, Recorder, Seen, Send, from_json, to_json


class Notes:
    """Takes operations of this process, from any thread.

    Args:
        file: gets a line for each; None keeps them in `ops`.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.ops: list[Op] = []
        self._file = file
        self._lock = threading.Lock()

    def add(
        self,
        process: str,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Mapping[int, Iterable[Sequence[int]]] | None = None,
        details: object = None,
        error: str | None = None,
    ) -> None:
        """Note an operation, of this moment; `polled` has pairs of offset and value by key."""
        op = Op(time.monotonic_ns(), process, type, f, sends=sends, details=details, error=error)
        if polled is not None:
            op.polls = [{key: [Seen(*pair) for pair in pairs] for key, pairs in polled.items()}]
        with self._lock:
            if self._file is None:
                self.ops.append(op)
            else:
                print(to_json(op), file=self._file, flush=True)


def noted(path: Path) -> Iterator[Op]:
    """Yield what a process has noted in a file so far."""
    text = path.read_text() if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):  # The last one of a killed process may be cut off.
            yield from_json(line)


def merged(ops: Iterable[Op]) -> list[Op]:
    """Return the history of what several processes have noted."""
    recorder = Recorder()
    for op in sorted(ops, key=lambda op: op.at_ns):
        polled = [
            {key: [seen for seen in seens if type(seen) is Seen] for key, seens in poll.items()}
            for poll in op.polls
        ]
        recorder.record(replace(op, polls=()), polled)
    return recorder.ops
