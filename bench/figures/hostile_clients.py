"""What hostile clients take from others: the p99 of single records beside each kind of them, over
the p99 without.

A client sends a record when the one before is acknowledged. The attackers are a process of their
own on the same two cores (`bench.loads.hostile`); what they take of them counts, too.
"""

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from threading import Thread

from bench.loads import hostile
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome, say, settle
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import last_json, run_load
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic, run_client

ALONE = "alone"
_LEAD_S = 2.0
"""How much longer the attackers run than the client."""


def measure(bench: Bench) -> Outcome:
    """Measure without attackers and beside each kind, in turn."""
    names = (ALONE, *hostile.WAYS)
    p99_ms: dict[str, list[float]] = {name: [] for name in names}
    made: dict[str, int] = {}
    with ExitStack() as stack:
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        for number in range(1, bench.rounds + 1):
            for name in names:
                settle()
                attackers = _Attackers(millrace, name, bench.seconds, bench.directory)
                p99_ms[name].append(_p99_ms(millrace, bench))
                made[name] = attackers.end()
                say(f"round {number}/{bench.rounds} {name:14} p99 {p99_ms[name][-1]:.2f} ms")
    over = {
        name: median(
            beside / alone for beside, alone in zip(p99_ms[name], p99_ms[ALONE], strict=True)
        )
        for name in hostile.WAYS
    }
    return Outcome(
        values={"p99 over p99": max(over.values())},
        detail={
            "over": over,
            "p99_ms": {name: median(of_name) for name, of_name in p99_ms.items()},
            "connections_made": made,
        },
    )


def _p99_ms(millrace: Millrace, bench: Bench) -> float:
    with fresh_topic(millrace, 1, MILLRACE_TOPIC["replicated"]) as topic:
        load = Load(
            address=millrace.address,
            topic=topic,
            partitions=1,
            seconds=bench.seconds,
            settings={"producer": {"linger_ms": 0}, "pids": millrace.pids},
        )
        log = bench.directory / "honest.log"
        found = run_client(millrace, "one_by_one_millrace", load, log).moved.detail["p99_ms"]
        return float(found)


class _Attackers:
    """Those of one kind, from now on; none for `ALONE`.

    Args:
        seconds: that the client takes after its start.
    """

    def __init__(self, millrace: Millrace, way: str, seconds: float, directory: Path) -> None:
        self._made = 0
        self._load = Load(
            address=millrace.address,
            topic="",
            partitions=0,
            # The client warms up for a fifth of its time.
            seconds=1.2 * seconds + _LEAD_S,
            way=way,
            settings={"drpc": millrace.drpc_address},
        )
        self._log = directory / "hostile.log"
        self._running = Thread(target=self._run)
        if way != ALONE:
            self._running.start()

    def _run(self) -> None:
        seconds_max = self._load.seconds + GRACE_S
        printed, _ = run_load(command_line("hostile", self._load), self._log, seconds_max)
        self._made = Moved(**last_json(printed)).records

    def end(self) -> int:
        """Wait for their end; return how many connections they made."""
        if self._load.way != ALONE:
            self._running.join()
        return self._made
