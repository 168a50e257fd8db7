"""The load as the main process of a pod, so that it is independent of the API server.

    python -m e2e.load.program SETTINGS FOLDER

SETTINGS is a file, see `Settings`. In FOLDER it keeps

| file | |
|---|---|
| `history.jsonl` | all operations, in the format of `tests.checkers.history` |
| `original.jsonl`, `copied.jsonl` | likewise, of transactions and their copy, at the end |
| `marks` | written from outside, a line of JSON for each mark; the load follows it |
| `status.json` | the present status, written again and again |

A mark is `{"window": "open"}` or `"close"`, `{"fault": [id, target]}`, or `{"finish": true}`. After
the last one the clients stop, and read everything from the beginning; histories are complete when
the status says `is_finished`. The pod goes on, so that they can be fetched.
"""

import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.checkers.history import Op, to_json
from tests.faults.history import History
from tests.faults.load import Load, Places
from tests.faults.transactional import Transactional

_LOOK_SECONDS: Final = 0.02
_LOOKS_A_STATUS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the load; see `tests.faults.load.Load`.

    Attributes:
        transactions_in: a namespace. Transactions are written to a topic there, and copied to
            another one, exactly once (`tests.faults.transactional`); empty: there are none.
        replicas: of these two topics.
    """

    bootstrap: str
    topics: tuple[str, ...]
    partitions: int
    seed: int = 1
    readers: int = 2
    pause_s: float = 0.2
    record_bytes: int = 200
    transactions_in: str = ""
    replicas: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The progress of the load.

    Attributes:
        marks: how many marks it has read.
        acknowledged_of: number of acknowledged values, by the number of the partition's key.
        seen: number of records that readers have seen of the topic with transactions, and of its
            copy.
        failure: an unexpected error of the clients; empty: none.
    """

    marks: int
    acknowledged: int
    acknowledged_of: dict[str, int]
    repeated: int
    seen: dict[str, int]
    is_finished: bool = False
    failure: str = ""


class _Marks:
    """The file of marks, followed."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._rest = ""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the marks since the last call."""
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split("\n")
        yield from map(json.loads, lines)


def main() -> None:
    """Work until the mark to finish, then wait for the signal to end."""
    settings_file, folder = map(Path, sys.argv[1:])
    settings = Settings(**json.loads(settings_file.read_text()))
    marks = _Marks(folder / "marks")
    places = Places(topics=tuple(settings.topics), partitions=settings.partitions)
    transactional = Transactional(
        folder / "transactions",
        settings.bootstrap,
        namespace=settings.transactions_in,
        replicas=settings.replicas,
    )
    with History(folder / "history.jsonl", keeps_ops=False) as history:
        load = Load(
            settings.bootstrap,
            history,
            settings.seed,
            places,
            zones=("",) * settings.readers,
            pause_s=settings.pause_s,
            record_bytes=settings.record_bytes,
        )
        load.start()
        load.begin()
        try:
            if settings.transactions_in:
                transactional.begin()
            _serve(load, transactional, history, marks, folder)
        except Exception:
            failure = traceback.format_exc()
        else:
            failure = ""
    status = replace(_status(load, transactional, -1, is_finished=True), failure=failure)
    while True:
        _write(folder, status)
        time.sleep(60)


def _serve(
    load: Load, transactional: Transactional, history: History, marks: _Marks, folder: Path
) -> None:
    taken = 0
    while True:
        for mark in marks.new():
            taken += 1
            match mark:
                case {"window": what}:
                    history.window(what)
                    transactional.window(what)
                case {"fault": [fault_id, target]}:
                    history.fault(fault_id, target)
                case {"finish": True}:
                    for taking in (history, transactional):
                        taking.window("close")
                    transactional.read_all()
                    load.read_all()
                    load.stop()
                    _write_history(folder / "original.jsonl", transactional.original)
                    _write_history(folder / "copied.jsonl", transactional.copied)
                    return
                case _:
                    raise ValueError(f"no such mark: {mark}")
        _write(folder, _status(load, transactional, taken))
        for _ in range(_LOOKS_A_STATUS):
            time.sleep(_LOOK_SECONDS)


def _status(
    load: Load, transactional: Transactional, taken: int, *, is_finished: bool = False
) -> Status:
    return Status(
        marks=taken,
        acknowledged=load.acknowledged,
        acknowledged_of={str(key): count for key, count in load.acknowledged_of.items()},
        repeated=load.repeated,
        seen=dict(transactional.seen),
        is_finished=is_finished,
        failure=transactional.problem if load.failure is None else repr(load.failure),
    )


def _write_history(path: Path, history: Sequence[Op]) -> None:
    path.write_text("".join(f"{to_json(op)}\n" for op in history))


def _write(folder: Path, status: Status) -> None:
    made = folder / "status.new"
    made.write_text(json.dumps(asdict(status)))
    made.replace(folder / "status.json")


if __name__ == "__main__":
    main()
