"""A simulated machine, and the process that runs on it.

What is plugged in is a `Node`: an object with four methods, made anew for every life of the
process. All it may know comes through its `Machine`:

- `clock`: `monotonic()`, `wall()`, `set_timer(delay_ms, token)`;
- `disk`: a `FileSystem`, for code that is called through `run`;
- `network`: `send(target, message)`, `open_stream(target, request)`; events come to `on_message`;
- `store`: `CoordinationStore` with answers that come later;
- `run(thread, job, done)`: let a thread of the process do a synchronous job;
- `exit(reason)`: the process ends itself; a supervisor starts it again, unless it was told to.

The process has one event loop, whose handlers run one after another to completion, and threads with
names, which do one job at a time. A thread is busy for as long as its disk calls cost; what a slow
disk adds ends when it is slow no longer. Events that come while the loop is busy or the process is
frozen wait. When a process dies, whatever it waited
for dies with it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeVar

from tests.fakes.disk import PowerCut
from tests.sim.clocks import MachineClock
from tests.sim.coordination import Answered, SimulatedStore
from tests.sim.disk import Cost, SimulatedDisk
from tests.sim.network import Network, NetworkEvent
from tests.sim.world import MILLISECOND, SECOND, Event, Violation, World

T = TypeVar("T")

INBOX_EVENTS_MAX: Final = 100_000
SUPERVISOR_US: Final = SECOND
_STALL_STEP_US: Final = 100 * MILLISECOND
"""How often a call that a slow disk holds up looks whether it still is slow."""


@dataclass(slots=True)
class Terminated:
    """SIGTERM: the process should leave in order, and then `exit`. It may be killed before."""


NodeEvent = NetworkEvent | Terminated


class Node(Protocol):
    """One life of a process. Methods run to completion; none is called after `crash`."""

    def start(self, machine: "Machine") -> None:
        """Begin. The disk is as the life before left it."""

    def on_message(self, event: NodeEvent) -> None:
        """Something came from the network, or from the operating system."""

    def on_timer(self, token: object) -> None:
        """A timer is due."""

    def crash(self) -> None:
        """The process is dead. Nothing may be done any more; only for counting and asserting."""


class ProcessExitError(Exception):
    """The process ends itself."""


@dataclass(slots=True)
class _Thread:
    """Jobs of one thread, each with what is done afterwards."""

    jobs: deque[tuple[Callable[[], object], Callable[[object], None]]]
    is_busy: bool = False


class Machine:
    """See the module.

    Attributes:
        node: the process; None while there is none.
        lives: how many processes there were.
        is_frozen: the process stands still (SIGSTOP); clocks and network go on.
        is_terminating: the process was told to leave; it is not started again when it did.
        exits: why processes ended themselves.
    """

    def __init__(
        self,
        world: World,
        name: str,
        network: Network,
        store: SimulatedStore,
        new_node: Callable[[], Node],
    ) -> None:
        self.world = world
        self.name = name
        self.clock = MachineClock(world, name, self._on_timer)
        self.disk = SimulatedDisk(world, name)
        self.random = world.random(f"process {name}")
        self.network = network.attach(self)
        self.store = store.handle(name, self._to_this_life)
        self.node: Node | None = None
        self.lives = 0
        self.is_powered = True
        self.is_frozen = False
        self.is_terminating = False
        self.exits: list[str] = []
        self._whole_network = network
        self._new_node = new_node
        self._inbox: deque[tuple[Callable[..., object], object]] = deque()
        self._threads: dict[str, _Thread] = {}
        self._is_loop_busy = False
        self._restart: Event | None = None

    @property
    def is_listening(self) -> bool:
        return self.node is not None

    # --- What a process may do ---------------------------------------------------------------

    def run(
        self, thread: str, job: Callable[[], T], done: Callable[[T | Exception], object]
    ) -> None:
        """Let a thread do a synchronous job, after those it already has.

        Args:
            thread: its name; it begins to exist with its first job.
            job: run at one moment; the thread is busy for what its disk calls cost.
            done: an event of the loop, with the result or the exception that the job raised.
        """
        queue = self._threads.setdefault(thread, _Thread(deque()))
        queue.jobs.append((job, done))  # type: ignore[arg-type]
        if not queue.is_busy:
            self._begin_job(thread, queue)

    def exit(self, reason: str) -> NoReturn:
        """End the process; to be called from a handler of the loop."""
        raise ProcessExitError(reason)

    # --- What tests and faults do to it ------------------------------------------------------

    def start(self) -> None:
        """Start a process, if there is none."""
        self._cancel_restart()
        if self.node is not None:
            return
        self.is_powered = True
        self.is_terminating = False
        self.lives += 1
        self.world.note(f"{self.name} starts, life {self.lives}")
        self.node = self._new_node()
        self._deliver(self.node.start, self)

    def kill(self, *, is_silent: bool = False) -> None:
        """End the process at once (SIGKILL). What it wrote stays in the page cache."""
        self._cancel_restart()
        if self.node is None:
            return
        self.world.note(f"{self.name} dies")
        self.node.crash()
        self.node = None
        self.is_frozen = self._is_loop_busy = False
        self._inbox.clear()
        self._threads.clear()
        self.clock.forget_timers()
        self.disk.restart()
        self._whole_network.on_process_ended(self.name, is_silent=is_silent)

    def terminate(self) -> None:
        """Tell the process to leave in order (SIGTERM)."""
        self.is_terminating = self.node is not None
        self.deliver(Terminated())

    def cut_power(self) -> None:
        """Take the power away: of what was not flushed some is lost, and nobody is told."""
        self.kill(is_silent=True)
        self.is_powered = False
        self.world.note(f"{self.name} loses power")
        self.disk.cut_power()

    def freeze(self) -> None:
        """Stop the process (SIGSTOP)."""
        self.is_frozen = self.node is not None

    def thaw(self) -> None:
        """Let it go on."""
        if self.is_frozen:
            self.is_frozen = False
            self._drain()
            for name, queue in list(self._threads.items()):
                if not queue.is_busy:
                    self._begin_job(name, queue)

    # --- How events reach the process --------------------------------------------------------

    def deliver(self, event: NodeEvent) -> None:
        if self.node is not None:
            self._deliver(self.node.on_message, event)

    def _on_timer(self, token: object) -> None:
        if self.node is not None:
            self._deliver(self.node.on_timer, token)

    def _deliver(self, handler: Callable[..., object], argument: object) -> None:
        if self.is_frozen or self._is_loop_busy or self._inbox:
            if len(self._inbox) >= INBOX_EVENTS_MAX:
                raise Violation(f"{self.name}: {INBOX_EVENTS_MAX} events wait for its loop")
            self._inbox.append((handler, argument))
        else:
            self._handle(handler, argument)

    def _handle(self, handler: Callable[..., object], argument: object) -> None:
        self.world.handled += 1
        try:
            handler(argument)
        except PowerCut:
            self.cut_power()
            self._start_later(SUPERVISOR_US)
        except ProcessExitError as reason:
            self.world.note(f"{self.name} exits: {reason}")
            self.exits.append(str(reason))
            self.kill()
            if not self.is_terminating:
                self._start_later(SUPERVISOR_US)
        else:
            cost = self.disk.take_cost()
            if any(cost):
                self._is_loop_busy = True
                self._after(cost, f"{self.name} loop", self._loop_is_free, self.lives)

    def _loop_is_free(self, life: int) -> None:
        if life == self.lives and self.node is not None:
            self._is_loop_busy = False
            self._drain()

    def _drain(self) -> None:
        while self._inbox and not self.is_frozen and not self._is_loop_busy:
            self._handle(*self._inbox.popleft())

    def _begin_job(self, name: str, queue: _Thread) -> None:
        """Take up a thread's next job, once the loop's handler has come to its end."""
        if not self.is_frozen and queue.jobs:
            queue.is_busy = True
            self.world.after(0, f"{self.name} {name}", self._do_job, self.lives, name, queue)

    def _do_job(self, life: int, name: str, queue: _Thread) -> None:
        if life != self.lives or self.node is None:
            return
        if self.is_frozen:
            queue.is_busy = False  # It begins when the process goes on.
            return
        job, done = queue.jobs.popleft()
        result: object
        try:
            result = job()
        except PowerCut:
            self.cut_power()
            self._start_later(SUPERVISOR_US)
            return
        except Violation:
            raise
        except Exception as error:
            result = error
        self._after(
            self.disk.take_cost(),
            f"{self.name} {name} is done",
            self._job_is_done,
            life,
            name,
            queue,
            done,
            result,
        )

    def _after(
        self, cost: Cost, what: str, action: Callable[..., object], *arguments: object
    ) -> None:
        """Do something when the disk has done what it was called for."""
        calls_us, stall_us = cost
        if stall_us <= 0 or not self.disk.times.stall_us:
            self.world.after(calls_us, what, action, *arguments)
            return
        step = min(stall_us, _STALL_STEP_US)
        rest = Cost(calls_us, stall_us - step)
        self.world.after(
            step, f"{self.name} waits for its disk", self._after, rest, what, action, *arguments
        )

    def _job_is_done(
        self,
        life: int,
        name: str,
        queue: _Thread,
        done: Callable[[object], None],
        result: object,
    ) -> None:
        if life != self.lives or self.node is None:
            return
        self._deliver(done, result)  # What it gives the thread to do waits for what it has.
        queue.is_busy = False
        if self.node is not None and life == self.lives:
            self._begin_job(name, queue)

    def _to_this_life(self, answered: Answered) -> Answered:
        """Let an answer reach the life that asked, through its loop, and no later one."""
        life = self.lives

        def answer(result: object) -> None:
            if self.node is not None and self.lives == life:
                self._deliver(answered, result)

        return answer

    def _start_later(self, delay: int) -> None:
        self._cancel_restart()
        self._restart = self.world.after(delay, f"{self.name} supervisor", self.start)

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
