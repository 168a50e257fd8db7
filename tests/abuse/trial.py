"""One attack on a broker, and the verdict on it.

Others' p99 during the attack may be twice that before, the memory may grow within the attack's
bound, and afterwards the broker must serve as before. Where the p99 before is below `NOISE_MS`,
that counts instead: on a machine of two processors whatever keeps another thread of the broker busy
costs a record a slice of the scheduler's or of the interpreter's time, of 5 ms, on the way to the
broker and on the way back.
"""

import subprocess
import time
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

from tests.abuse.attack import Attack
from tests.abuse.world import World

BEFORE_SECONDS: Final = 2.0
SECONDS: Final = 5.0
NOISE_MS: Final = 10.0
TIMES_MAX: Final = 2.0
_RECOVERY_SECONDS: Final = 15.0
_QUIET_SECONDS: Final = 1.0
_END_SECONDS: Final = 10.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an attack did.

    Attributes:
        p99_before_ms: of honest records, from the time when one was due to its receipt.
        p99_ms: of those during the attack.
        grown_mib: by how much the broker's memory grew at most.
        connections: that attackers made.
        trouble: what was wrong afterwards; empty: nothing.
    """

    attack: Attack
    p99_before_ms: float
    p99_ms: float
    grown_mib: float
    connections: int
    trouble: str

    @property
    def times(self) -> float:
        """How often the p99 before fits into that during the attack."""
        return self.p99_ms / max(self.p99_before_ms, NOISE_MS)

    @property
    def problems(self) -> list[str]:
        """What must not be; empty: the attack failed."""
        found = []
        if self.times > TIMES_MAX:
            found.append(f"others' p99 is {self.times:.1f} times as long")
        if self.grown_mib > self.attack.memory_mib_max:
            found.append(f"the broker grew by {self.grown_mib:.0f} MiB")
        if self.trouble:
            found.append(self.trouble)
        return found

    def line(self) -> str:
        """Return it as a line of the table."""
        said = "; ".join(self.problems) or "held"
        return (
            f"{self.attack.name:22} {self.p99_before_ms:9.1f} {self.p99_ms:9.1f} "
            f"{self.times:6.1f} {self.grown_mib:7.0f} {self.connections:9}  {said}"
        )


HEADING: Final = (
    f"{'attack':22} {'before ms':>9} {'during ms':>9} {'times':>6} {'MiB':>7} {'connected':>9}  "
)


def attacked(
    world: World, attack: Attack, seconds: float, before_seconds: float = BEFORE_SECONDS
) -> Verdict:
    """Carry out one attack."""
    begin = time.monotonic_ns()
    time.sleep(before_seconds)
    world.wait_for(time.monotonic_ns(), _RECOVERY_SECONDS)
    before = world.delays_ms(begin, begin + int(before_seconds * 1e9))
    memory = _Memory(world)
    attacker = world.attack(attack.name, seconds)
    begin = time.monotonic_ns()
    time.sleep(seconds)
    end = time.monotonic_ns()
    served = world.wait_for(end, _RECOVERY_SECONDS)
    during = world.delays_ms(begin, end)
    made, trouble = _ended(attacker)
    time.sleep(_QUIET_SECONDS)
    if not served:
        trouble = trouble or f"honest clients were not served within {_RECOVERY_SECONDS:.0f} s"
    return Verdict(
        attack=attack,
        p99_before_ms=_p99(before),
        p99_ms=_p99(during),
        grown_mib=memory.end() / _MIB,
        connections=made,
        trouble=world.trouble() or trouble,
    )


def judged(world: World, attack: Attack, seconds: float = SECONDS) -> Verdict:
    """Carry out one attack; again if only others' p99 was too long, and the better time counts.

    Whatever else runs on the machine may take it for a while.
    """
    verdict = attacked(world, attack, seconds)
    if len(verdict.problems) == 1 and verdict.times > TIMES_MAX:
        again = attacked(world, attack, seconds)
        return min(verdict, again, key=lambda each: (len(each.problems), each.times))
    return verdict


def _ended(attacker: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for the end of an attack; return its connections, and what is wrong with the attack."""
    try:
        said, _ = attacker.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        attacker.kill()
        attacker.communicate()
        return 0, ""
    if attacker.returncode:
        return 0, f"the attack itself failed with {attacker.returncode}"
    return int(said), ""


def _p99(delays: list[float]) -> float:
    return sorted(delays)[len(delays) * 99 // 100] if delays else float("inf")


class _Memory:
    """The greatest memory of the broker from now on."""

    def __init__(self, world: World) -> None:
        self._broker = world.broker
        self._before = self._most = world.broker.rss_bytes()
        self._ended = Event()
        self._watching = Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            try:
                self._most = max(self._most, self._broker.rss_bytes())
            except (OSError, StopIteration):
                return  # It is gone: `trouble` tells.

    def end(self) -> int:
        """Return by how many bytes it grew at most."""
        self._ended.set()
        self._watching.join()
        return self._most - self._before
