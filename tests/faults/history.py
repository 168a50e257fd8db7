"""The history of one run, in one order: reports of clients, the metadata's watcher, and faults.

See `tests.checkers.history` for the format; this module adds the lock and the clock.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.checkers.history import INFO, Op, Recorder, Send

NEMESIS: Final = "nemesis"
Polled = Iterable[Mapping[int, Iterable[Sequence[int]]]]


class History:
    """Takes reports from any thread.

    Args:
        path: the file for the lines; None keeps them in memory alone.
        keeps_ops: whether `ops` fills; off if this process does not judge the history.
    """

    def __init__(self, path: Path | None = None, *, keeps_ops: bool = True) -> None:
        self._file = None if path is None else path.open("w")
        self._recorder = Recorder(None if self._file is None else self._write, keeps_ops=keeps_ops)
        self._lock = threading.Lock()

    def record(
        self,
        process: str,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Polled = (),
        details: object = None,
        error: str | None = None,
    ) -> None:
        """Add a line, of this moment."""
        with self._lock:
            op = Op(
                time.monotonic_ns(), process, type, f, sends=sends, details=details, error=error
            )
            self._recorder.record(op, polled)

    def window(self, what: str) -> None:
        """Note that all should be available from now on ("open"), or may be broken ("close")."""
        self.record(NEMESIS, INFO, "window", details=what)

    def fault(self, fault_id: str, target: str) -> None:
        """Note that a fault's effect was seen."""
        self.record(NEMESIS, INFO, "fault", details=[fault_id, target])

    @property
    def ops(self) -> list[Op]:
        return self._recorder.ops

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
