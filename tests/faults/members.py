"""A consumer group of processes, which reads what is written with `acks=all` while faults happen.

Each member is a process (`member`) that leaves its events in a file. An observer asks for the
stored positions all the time. `judge` puts all of it together with the sends of the load, in the
order of time, for `tests.checkers`.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.checkers.check import check
from tests.checkers.history import INFO, INVOKE, OK, Op, Recorder
from tests.checkers.report import Expectations, Report
from tests.faults.load import Places
from tests.integration.running_broker import wait_until

from millrace.client import SyncAdmin
from millrace.core.errors import MillraceError

GROUP: Final = "members"
MEMBERS: Final = 3
_STOP_SECONDS_MAX: Final = 30.0
_CAUGHT_UP_SECONDS_MAX: Final = 60.0
_OBSERVE_SECONDS: Final = 0.2
_FOREVER_NS: Final = 2**62

Event = tuple[int, str, str, str, Any]
"""Time in ns, process, type, f, and content."""


class MemberProcess:
    """One member.

    Args:
        name: of this life.
        folder: for its file and what it says.
        words: its module and arguments, without the file.

    Attributes:
        name: of this life.
        ended_at_ns: when it was killed; 0: it was not.
    """

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        self.name = name
        self.ended_at_ns = 0
        self._file = folder / f"{name}.jsonl"
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words, str(self._file)], stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def owned(self) -> set[int]:
        """The keys that it was given and has not given up."""
        found: set[int] = set()
        for _, _, _, f, content in self.events():
            if f == "group" and content[0] == "assigned":
                found.update(content[1])
            elif f == "group" and content[0] == "given-up":
                found.difference_update(content[1])
        return found

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        if self.is_running:
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process; its group is not told."""
        self._process.kill()
        self._process.wait()
        self.ended_at_ns = self.ended_at_ns or time.monotonic_ns()

    def stop(self) -> None:
        """Let it leave the group in order.

        Raises:
            AssertionError: it had ended before by itself, or does not end in time.
        """
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end: {self.log_end()}") from None
        assert code == 0, f"{self.name} ended with {code}: {self.log_end()}"

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def events(self) -> Iterator[Event]:
        """Yield what it has written so far."""
        text = self._file.read_text() if self._file.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):  # The last one of a killed process may be cut off.
                yield (*_event(self.name, line),)
        if self.ended_at_ns:
            yield self.ended_at_ns, self.name, INFO, "group", ["gone", []]


def _event(name: str, line: str) -> Event:
    at_ns, type, f, content = json.loads(line)
    if f in ("poll", "commit") and isinstance(content, dict):
        content = {int(key): value for key, value in content.items()}
    return at_ns, name, type, f, content


class Members:
    """The member processes and their observer. Close it at the end.

    Args:
        folder: for the members' files.
        bootstrap: addresses of the brokers.
        places: what they read.
        group: its name.
        modes: of the checkers; see `check`.

    Attributes:
        running: the members that should run, some of them perhaps paused.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        places: Places,
        *,
        group: str = GROUP,
        modes: Sequence[str] = ("assign",),
    ) -> None:
        self.running: list[MemberProcess] = []
        self.group = group
        self._folder = folder
        self._bootstrap = bootstrap
        self._places = places
        self._modes = modes
        self._lives = itertools.count()
        self._ended: list[MemberProcess] = []
        self._observed: list[Event] = []
        self._is_over = threading.Event()
        self._observer = threading.Thread(target=self._observe, name="observer", daemon=True)
        folder.mkdir()

    def start(self) -> None:
        for _ in range(MEMBERS):
            self.join()
        self._observer.start()
        self.wait_until_shared()

    def join(self) -> MemberProcess:
        """Start another member."""
        name = f"member-{next(self._lives)}"
        member = MemberProcess(name, self._folder, self.words())
        self.running.append(member)
        return member

    def words(self) -> list[str]:
        """Return the module of a member and its arguments, without its file."""
        places = self._places
        return [
            *("tests.faults.member", self._bootstrap, self.group),
            *(",".join(places.topics), str(places.partitions)),
        ]

    def kill(self, member: MemberProcess) -> None:
        """Kill a member."""
        member.kill()
        self.running.remove(member)
        self._ended.append(member)

    def wait_until_shared(self, seconds: float = _CAUGHT_UP_SECONDS_MAX) -> None:
        """Return once the members that run have all partitions, each some.

        Raises:
            AssertionError: they have not in time.
        """
        wait_until(self._is_shared, f"the group is shared: {self._owned()}", seconds)

    def _is_shared(self) -> bool:
        owned = self._owned()
        keys = sorted(key for some in owned.values() for key in some)
        return keys == list(self._places.keys) and all(owned.values())

    def _owned(self) -> dict[str, set[int]]:
        return {member.name: member.owned() for member in self.running}

    def stored(self) -> dict[int, int]:
        """Return the stored positions by key.

        Raises:
            MillraceError: no broker tells them.
        """
        with SyncAdmin(self._bootstrap, request_timeout_ms=5_000) as admin:
            return self._by_key(admin.fetch_positions(self.group))

    def wait_until_caught_up(self, ends: Mapping[int, int]) -> None:
        """Return once the group has committed all partitions up to their ends.

        Raises:
            AssertionError: it has not in time.
        """
        wanted = {key: end for key, end in ends.items() if key in self._places.keys and end}
        wait_until(
            lambda: self._observed and {**wanted, **_last(self._observed)} == wanted,
            f"the group commits {wanted}",
            _CAUGHT_UP_SECONDS_MAX,
        )

    def stop(self) -> None:
        """Let all members leave.

        Raises:
            AssertionError: one of them had failed.
        """
        self._is_over.set()
        if self._observer.is_alive():
            self._observer.join()
        failures = []
        for member in self.running:
            member.resume()
            try:
                member.stop()
            except AssertionError as failure:
                failures.append(str(failure))
        self._ended += self.running
        self.running = []
        assert not failures, "; ".join(failures)

    def close(self) -> None:
        """Leave no process behind."""
        self._is_over.set()
        for member in self.running:
            member.kill()

    def judge(self, sends: Iterable[Op]) -> Report:
        """Judge what the members were told, and that they have read all that was sent."""
        recorder = Recorder()
        events: list[Event | Op] = [*self._observed, *sends]
        for member in self._ended:
            events += member.events()
        handed_out = 0
        for event in sorted(
            events, key=lambda event: event.at_ns if isinstance(event, Op) else event[0]
        ):
            if isinstance(event, Op):
                recorder.record(
                    Op(
                        event.at_ns,
                        event.process,
                        event.type,
                        event.f,
                        event.sends,
                        error=event.error,
                    )
                )
                continue
            at_ns, name, type, f, content = event
            if f == "poll" and type == OK:
                handed_out += sum(map(len, content.values()))
                recorder.record(Op(at_ns, name, type, f), [content])
            elif f == "error":
                recorder.record(Op(at_ns, name, type, "poll", error=content))
            else:
                recorder.record(Op(at_ns, name, type, f, details=content))
        report = check(
            recorder.ops,
            modes=self._modes,
            expectations=Expectations(
                ok_shares={"poll": 0.9, "commit": 0.8, "positions": 0.5}, final_polls=False
            ),
            availability_ns=_FOREVER_NS,
        )
        report.measures["handed_out"] = handed_out
        return report

    def _observe(self) -> None:
        with SyncAdmin(self._bootstrap, request_timeout_ms=5_000) as admin:
            while not self._is_over.wait(_OBSERVE_SECONDS):
                self.note(INVOKE, None)
                try:
                    stored = admin.fetch_positions(self.group)
                except MillraceError as error:
                    self.note(INFO, repr(error))
                else:
                    self.note(OK, self._by_key(stored))

    def note(self, type: str, content: object, observer: str = "observer") -> None:
        """Note what an observer asked, or was told of the stored positions."""
        self._observed.append((time.monotonic_ns(), observer, type, "positions", content))

    def _by_key(self, stored: Mapping[tuple[str, int], Any]) -> dict[int, int]:
        return {self._places.key_of(*place): position.offset for place, position in stored.items()}


def _last(observed: Sequence[Event]) -> dict[int, int]:
    """The stored positions, as they were seen last."""
    for _, _, type, _, content in reversed(observed):
        if type == OK:
            return dict(content)
    return {}
