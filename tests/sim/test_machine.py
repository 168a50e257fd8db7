"""A machine's process: its loop and threads, what waits, and what dies with it."""

from collections.abc import Callable

from tests.sim.coordination import SimulatedStore
from tests.sim.machine import SUPERVISOR_US, Machine, NodeEvent, Terminated
from tests.sim.network import Network, Received
from tests.sim.world import MILLISECOND, SECOND, World


class Probe:
    """A node that notes what happens to it."""

    def __init__(self, log: list[object]) -> None:
        self.log = log
        self.on: Callable[[object], object] = lambda message: None

    def start(self, machine: Machine) -> None:
        self.machine = machine
        self.log.append("start")

    def on_message(self, event: NodeEvent) -> None:
        if isinstance(event, Terminated):
            self.machine.exit("told to")
        assert isinstance(event, Received)
        self.log.append((self.machine.world.now, event.message))
        self.on(event.message)

    def on_timer(self, token: object) -> None:
        self.log.append(token)

    def crash(self) -> None:
        self.log.append("crash")


class Bench:
    def __init__(self) -> None:
        self.world = World(1)
        self.network = Network(self.world)
        self.store = SimulatedStore(self.world, self.network)
        self.log: list[object] = []
        self.probes: list[Probe] = []
        self.machine = Machine(self.world, "m", self.network, self.store, self.new_probe)
        self.machine.start()

    def new_probe(self) -> Probe:
        self.probes.append(Probe(self.log))
        return self.probes[-1]

    @property
    def probe(self) -> Probe:
        return self.probes[-1]

    def send(self, *messages: object) -> None:
        for message in messages:
            self.machine.deliver(Received("x", message))

    def run(self, duration_us: int) -> None:
        self.world.run_until(self.world.now + duration_us)


def test_a_frozen_process_hears_everything_later_and_in_order() -> None:
    bench = Bench()
    bench.machine.clock.set_timer(100, "timer")
    bench.machine.freeze()
    bench.send("a", "b")
    bench.run(SECOND)
    assert bench.log == ["start"]
    bench.machine.thaw()
    assert bench.log == ["start", (SECOND, "a"), (SECOND, "b"), "timer"]


def test_the_loop_is_busy_for_what_its_disk_calls_cost() -> None:
    bench = Bench()
    bench.machine.disk.times.stall_us = 50 * MILLISECOND
    bench.probe.on = lambda _: bench.machine.disk.open(f"/f{bench.world.now}", create=True)
    bench.send("a", "b", "c")
    bench.run(SECOND)
    times = [entry[0] for entry in bench.log[1:]]  # type: ignore[index]
    assert times[0] == 0
    assert times[1] >= 50 * MILLISECOND
    assert times[2] >= 100 * MILLISECOND


def test_a_thread_does_one_job_at_a_time_while_the_loop_goes_on() -> None:
    bench = Bench()
    bench.machine.disk.times.stall_us = 100 * MILLISECOND
    done: list[tuple[int, str]] = []
    for name in ("/a", "/b"):
        bench.machine.run(
            "disk",
            lambda name=name: bench.machine.disk.open(name, create=True),  # type: ignore[misc]
            lambda result: done.append((bench.world.now, type(result).__name__)),
        )
    bench.send("meanwhile")
    assert bench.machine.disk.files() == []  # A job begins when the handler that asked ended.
    bench.run(SECOND)
    assert bench.log[1] == (0, "meanwhile")
    (first, kind), (second, _) = done
    assert kind == "SimulatedFile"
    assert 100 * MILLISECOND <= first < 200 * MILLISECOND <= second


def test_what_a_slow_disk_adds_ends_when_it_is_slow_no_longer() -> None:
    bench = Bench()
    disk, done = bench.machine.disk, list[int]()
    disk.times.stall_us = 2 * SECOND

    def calls(name: str) -> None:
        for number in range(30):
            disk.open(f"/{name}{number}", create=True)

    bench.machine.run("disk", lambda: calls("a"), lambda _: done.append(bench.world.now))
    bench.probe.on = lambda _: calls("b")
    bench.send("a", "b")
    bench.run(5 * SECOND)
    assert done == []
    assert len(bench.log) == 2
    disk.times.stall_us = 0
    bench.run(SECOND)
    assert len(done) == 1
    assert len(bench.log) == 3


def test_a_frozen_process_s_threads_stand_still() -> None:
    bench = Bench()
    did: list[int] = []
    for number in range(3):
        bench.machine.run("disk", lambda number=number: did.append(number), lambda _: None)  # type: ignore[misc]
    bench.machine.freeze()
    bench.run(SECOND)
    assert did == []
    bench.machine.thaw()
    bench.run(SECOND)
    assert did == [0, 1, 2]


def test_a_job_s_exception_is_its_result() -> None:
    bench = Bench()
    results: list[object] = []
    bench.machine.disk.is_read_only = True
    bench.machine.run("disk", lambda: bench.machine.disk.make_directory("/d"), results.append)
    bench.run(SECOND)
    assert [type(result) for result in results] == [OSError]


def test_what_a_process_waits_for_dies_with_it() -> None:
    bench = Bench()
    answers: list[object] = []
    bench.machine.clock.set_timer(10, "timer")
    bench.machine.store.read_lease(answers.append)
    bench.machine.run("disk", lambda: answers.append("done"), answers.append)
    bench.machine.kill()
    bench.machine.start()
    bench.run(5 * SECOND)
    assert answers == []
    assert bench.log == ["start", "crash", "start"]
    assert bench.machine.lives == 2
    assert bench.probes[0] is not bench.probes[1]


def test_a_process_that_exits_is_started_again() -> None:
    bench = Bench()
    bench.probe.on = lambda _: bench.machine.exit("tired")
    bench.send("go", "never heard")
    assert bench.machine.node is None
    assert bench.machine.exits == ["tired"]
    bench.run(SUPERVISOR_US)
    assert bench.log == ["start", (0, "go"), "crash", "start"]


def test_a_process_that_leaves_when_told_is_not_started_again_by_itself() -> None:
    bench = Bench()
    bench.machine.terminate()
    bench.run(10 * SUPERVISOR_US)
    assert bench.log == ["start", "crash"]
    assert bench.machine.exits == ["told to"]
    bench.machine.start()
    assert not bench.machine.is_terminating
    assert bench.log == ["start", "crash", "start"]


def test_power_that_goes_in_a_call_ends_the_process_and_loses_what_was_not_flushed() -> None:
    bench = Bench()

    def write(_: object) -> None:
        bench.machine.disk.cut_power_soon(2)
        bench.machine.disk.open("/f", create=True).append([b"x"])
        raise AssertionError("the power went before")

    bench.probe.on = write
    bench.send("write")
    states = [(bench.machine.node is None, bench.machine.is_powered)]
    bench.run(SUPERVISOR_US)
    states.append((bench.machine.node is None, bench.machine.is_powered))
    assert states == [(True, False), (False, True)]
    assert bench.log[-2:] == ["crash", "start"]


def test_the_disk_outlives_the_process_and_flushed_bytes_the_power() -> None:
    bench = Bench()
    disk = bench.machine.disk
    file = disk.open("/f", create=True)
    disk.fsync_directory("/")
    file.append([b"flushed"])
    file.fdatasync()
    file.append([b" and not"])
    bench.machine.kill()
    assert disk.contents("/f") == b"flushed and not"
    bench.machine.start()
    bench.machine.cut_power()
    assert disk.contents("/f").startswith(b"flushed")


def test_a_job_that_the_end_of_another_orders_is_done_once() -> None:
    bench = Bench()
    done: list[str] = []
    bench.machine.run(
        "disk",
        lambda: None,
        lambda _: bench.machine.run("disk", lambda: done.append("job"), lambda _: None),
    )
    bench.run(SECOND)
    assert done == ["job"]


def test_events_that_nodes_handle_are_counted() -> None:
    bench = Bench()
    before = bench.world.handled
    bench.send("a", "b")
    bench.machine.run("disk", lambda: None, lambda _: None)
    bench.run(SECOND)
    assert bench.world.handled - before == 3  # Two messages, and a job's end.
