"""Histories of a perfect cluster, which tests can then spoil.

Senders overlap: other operations may begin and end during a send. Readers follow each key from its
beginning. `finish` reads everything once more.
"""

import random
from collections.abc import Mapping, Sequence

from tests.checkers.history import FAIL, INFO, INVOKE, OK, STORE, Op, Recorder, Send

STEP_NS = 1_000_000


class PerfectCluster:
    """Writes the history of a cluster without faults.

    Attributes:
        ops: the history so far.
        logs: the value at each offset of each key; None is a hole, such as a marker.
    """

    def __init__(self, seed: int = 0, *, keys: int = 3, processes: int = 4) -> None:
        self.recorder = Recorder()
        self.logs: dict[int, list[int | None]] = {key: [] for key in range(keys)}
        self.now_ns = 0
        self._dice = random.Random(seed)
        self._processes = [f"c{number}" for number in range(processes)]
        self._positions: dict[tuple[str, int], int] = {}
        self._pending: dict[str, list[Send]] = {}
        self._values = 0
        self.record("nemesis", INFO, "window", details="open")
        for key in self.logs:
            self.metadata(key, 1)

    @property
    def ops(self) -> list[Op]:
        return self.recorder.ops

    def record(
        self,
        process: str,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Sequence[Mapping[int, Sequence[tuple[int, int]]]] = (),
        details: object = None,
        rebalanced: tuple[int, ...] = (),
        ends: Mapping[int, int] | None = None,
    ) -> Op:
        self.now_ns += STEP_NS
        op = Op(
            self.now_ns,
            process,
            type,
            f,
            sends=sends,
            details=details,
            rebalanced=rebalanced,
            ends=ends or {},
        )
        return self.recorder.record(op, polled)

    def new_value(self) -> int:
        self._values += 1
        return self._values

    # --- The load ----------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run so many client steps; each is one or two lines of the history."""
        for _ in range(steps):
            process = self._dice.choice(self._processes)
            if process in self._pending:
                self.end_send(process)
            elif self._dice.random() < 0.6:
                self.begin_send(process)
            else:
                self.poll(process, self._dice.randrange(len(self.logs)))
        for process in list(self._pending):
            self.end_send(process)

    def begin_send(self, process: str) -> None:
        key = self._dice.randrange(len(self.logs))
        sends = [Send(key, self.new_value()) for _ in range(self._dice.randint(1, 3))]
        self._pending[process] = sends
        self.record(process, INVOKE, "send", sends=sends)

    def end_send(self, process: str) -> None:
        """End a send: mostly `ok`, sometimes `fail`, sometimes with an unknown outcome."""
        sends = self._pending.pop(process)
        luck = self._dice.random()
        if luck < 0.03:
            self.record(process, FAIL, "send", sends=sends)
            return
        if luck < 0.06:
            if self._dice.random() < 0.5:
                for key, value, _ in sends:
                    self.logs[key].append(value)
            self.record(process, INFO, "send", sends=sends)
            return
        self.acknowledge(process, sends)

    def acknowledge(self, process: str, sends: Sequence[Send]) -> list[Send]:
        """Append records, and return their offsets."""
        done = []
        for key, value, _ in sends:
            done.append(Send(key, value, len(self.logs[key])))
            self.logs[key].append(value)
        self.record(process, OK, "send", sends=done)
        return done

    def send(self, process: str, key: int, count: int = 1) -> list[Send]:
        """Invoke and acknowledge a send."""
        sends = [Send(key, self.new_value()) for _ in range(count)]
        self.record(process, INVOKE, "send", sends=sends)
        return self.acknowledge(process, sends)

    def poll(self, process: str, key: int, limit: int = 50) -> None:
        """Read on from the last position."""
        position = self._positions.get((process, key), 0)
        records = self.records(key, position)[:limit]
        self.show(process, [{key: records}])
        if records:
            self._positions[process, key] = records[-1][0] + 1

    def show(
        self,
        process: str,
        polled: Sequence[Mapping[int, Sequence[tuple[int, int]]]],
        *,
        f: str = "poll",
        rebalanced: tuple[int, ...] = (),
        ends: Mapping[int, int] | None = None,
    ) -> Op:
        """Let a process read records."""
        self.record(process, INVOKE, f)
        return self.record(process, OK, f, polled=polled, rebalanced=rebalanced, ends=ends)

    def records(self, key: int, position: int = 0) -> list[tuple[int, int]]:
        return [
            (offset, value)
            for offset, value in enumerate(self.logs[key][position:], start=position)
            if value is not None
        ]

    def list_offsets(self, process: str, ends: Mapping[int, int] | None = None) -> None:
        self.record(process, INVOKE, "list_offsets", details=dict.fromkeys(ends or self.logs))
        found = ends or {key: len(log) for key, log in self.logs.items()}
        self.record(process, OK, "list_offsets", details=found)

    def metadata(
        self,
        key: int,
        version: int,
        *,
        observer: str = STORE,
        leader: int = 1,
        leader_epoch: int = 1,
        controller_epoch: int = 1,
        isr: Sequence[int] = (1, 2, 3),
    ) -> None:
        self.record(
            observer,
            INFO,
            "metadata",
            details={
                "key": key,
                "partition_epoch": version,
                "leader_epoch": leader_epoch,
                "controller_epoch": controller_epoch,
                "leader": leader,
                "isr": list(isr),
                "replicas": [1, 2, 3],
            },
        )

    def finish(self) -> list[Op]:
        """Close the window, and read every key from its beginning to its end."""
        self.record("nemesis", INFO, "window", details="close")
        for key in self.logs:
            self.show(f"final-{key}", [{key: self.records(key)}], f="final")
        return self.ops
