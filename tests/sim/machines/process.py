"""A simulated process: the shipped code of a broker or a client on a simulated machine.

While it runs, `host.current` is its machine and `asyncio` knows its loop. It ends with `kill`, or
in the middle of a call to the disk when the power fails. Nothing of it runs after that, not even
its clean-up code. While it is paused, its steps wait.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from tests.sim.machines.byte_connections import SimulatedListening, connect
from tests.sim.machines.clocks import MachineClock
from tests.sim.machines.connections import SimulatedChannel, SimulatedServer
from tests.sim.machines.event_loop import SimulatedLoop
from tests.sim.machines.network import Network
from tests.sim.machines.threads import SimulatedEvent, SimulatedQueue, SimulatedThread
from tests.sim.world import World

from millrace.runtime import host

_graveyard: list[object] = []
"""The remains of dead processes: the garbage collector would run their code."""


class Machine(Protocol):
    """The part of its machine that a process needs."""

    @property
    def name(self) -> str: ...
    @property
    def is_powered(self) -> bool: ...
    @property
    def is_frozen(self) -> bool: ...
    @property
    def world(self) -> World: ...
    @property
    def clock(self) -> MachineClock: ...
    @property
    def network(self) -> Network: ...


class SimulatedHost:
    """A process's machine as the product sees it; implements `Host`.

    Attributes:
        drawn: random bytes that the process got, for example for its ids.
    """

    def __init__(self, process: "Process") -> None:
        self.drawn: set[bytes] = set()
        self.process = process
        self._dice = process.world.random(f"host {process.name}")
        self._clock = process.machine.clock

    def monotonic_ns(self) -> int:
        return self._clock.monotonic() * 1000

    def wall_ns(self) -> int:
        return self._clock.wall() * 1000

    def random_bytes(self, count: int) -> bytes:
        drawn = self._dice.randbytes(count)
        self.drawn.add(drawn)
        return drawn

    def dice(self) -> random.Random:
        return random.Random(self._dice.random())

    def start_thread(self, name: str, run: Callable[[], None]) -> SimulatedThread:
        return self.process.start_thread(name, run)

    def start_loop(self, name: str) -> Any:
        del name
        return self.process.loop  # A process has one loop, which never ends either.

    def new_queue(self) -> SimulatedQueue:
        return SimulatedQueue()

    def new_event(self) -> SimulatedEvent:
        return SimulatedEvent()

    def channel(self, address: str, options: object, credentials: object = None) -> Any:
        del options, credentials
        return SimulatedChannel(self.process.machine.network, self.process, address)

    def server(self, interceptors: Sequence[Any], options: object) -> Any:
        del options
        return SimulatedServer(self.process.machine.network, self.process, interceptors)

    def listen(self, server: Any, address: str, credentials: object) -> int:
        del credentials
        port: int = server.listen(address)
        return port

    def bind(self, address: str) -> SimulatedListening:
        return SimulatedListening(self.process.machine.network, self.process, address)

    async def connect(self, address: str, factory: Any, tls: object = None) -> Any:
        del tls
        return await connect(self.process.machine.network, self.process, address, factory)


class Process:
    """One life of a broker or a client.

    Args:
        machine: the machine that it runs on.
        name: for the trace; unique.

    Attributes:
        is_dead: it was killed, or has exited by itself.
    """

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.world = machine.world
        self.name = name
        self.is_dead = False
        self.host = SimulatedHost(self)
        self._held: list[Callable[[], object]] = []
        self._threads: list[SimulatedThread] = []
        self._executors: dict[int, SimulatedQueue] = {}
        self.loop: Any = SimulatedLoop(
            self.world,
            name,
            monotonic_us=machine.clock.monotonic,
            after=machine.clock.after,
            enter=partial(self._enter, is_loop=True),
            submit=self._submit,
        )

    def _enter(self, run: Callable[[], object], is_loop: bool = False) -> None:
        """Run a step of the process."""
        if self.is_dead:
            return
        if self.machine.is_frozen:
            self._held.append(partial(self._enter, run, is_loop))
            return
        self.world.handled += 1
        host_before, loop_before = host.current, asyncio._get_running_loop()
        host.current = self.host
        asyncio._set_running_loop(self.loop if is_loop else None)
        try:
            run()
        finally:
            host.current = host_before
            asyncio._set_running_loop(loop_before)

    def thaw(self) -> None:
        """Resume."""
        held, self._held = self._held, []
        for step in held:
            self.world.after(0, f"{self.name} goes on", step)

    def start_thread(self, name: str, run: Callable[[], None]) -> SimulatedThread:
        thread = SimulatedThread(
            self.world, f"{self.name} {name}", run, self._enter, self.machine.clock.after
        )
        self._threads.append(thread)
        return thread

    def _submit(self, executor: Any, job: Callable[[], None]) -> None:
        if executor is None:
            self.start_thread("to_thread", job)
            return
        jobs = self._executors.get(id(executor))
        if jobs is None:
            jobs = self._executors[id(executor)] = SimulatedQueue()

            def run(jobs: SimulatedQueue = jobs) -> None:
                while True:
                    jobs.get()()

            self.start_thread(f"executor {len(self._executors)}", run)
        jobs.put(job)

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a coroutine in the process."""

        def start() -> None:
            self.loop.create_task(work()).add_done_callback(raise_failure)

        self.loop.call_soon(start)

    def bury(self) -> None:
        """Drop everything that would still run."""
        self.is_dead = True
        self.loop.bury()
        _graveyard.append((self.loop, self._threads, self._executors, self._held))


def raise_failure(task: "asyncio.Task[Any]") -> None:
    """End the run with what a task has raised: a callback of tasks that nobody awaits."""
    if not task.cancelled():
        error = task.exception()
        if error is not None:
            raise error
