"""Virtual time: its order, its dice, and that one seed is one run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.world import Trace, Violation, World

pytestmark = pytest.mark.timeout(600)  # Whole clusters, on busy machines.

ROOT = Path(__file__).resolve().parents[2]

# Modules through which the real machine could influence a simulation.
BANNED = {
    "concurrent", "datetime", "multiprocessing", "pathlib", "secrets", "socket", "subprocess",
    "threading", "time", "uuid",
}  # fmt: skip


def test_events_happen_by_time_and_then_in_the_order_in_which_they_were_scheduled() -> None:
    world = World(1)
    happened: list[str] = []
    for name, at in (("late", 20), ("first", 10), ("second", 10), ("early", 5)):
        world.at(at, name, happened.append, name)
    world.at(10, "nested", lambda: world.after(0, "soon", happened.append, "third"))
    world.run_until(15)
    assert happened == ["early", "first", "second", "third"]
    assert world.now == 15
    world.run_until(30)
    assert happened[-1] == "late"


def test_a_cancelled_event_does_not_happen() -> None:
    world = World(1)
    happened: list[str] = []
    event = world.after(1, "a", happened.append, "a")
    world.after(2, "b", happened.append, "b")
    event.cancel()
    world.run_until(5)
    assert happened == ["b"]
    assert world.events == 1


def test_the_past_cannot_be_scheduled() -> None:
    world = World(1)
    world.run_until(100)
    times: list[int] = []
    world.at(50, "past", lambda: times.append(world.now))
    world.run_until(200)
    assert times == [100]


def test_dice_of_one_concern_are_not_moved_by_another() -> None:
    alone = World(7).random("disk").random()
    world = World(7)
    world.random("network").random()
    assert world.random("disk").random() == alone
    assert World(8).random("disk").random() != alone
    assert world.random("network").random() != alone


def test_a_violation_ends_the_run_at_its_event() -> None:
    world = World(1)
    for at in range(10):
        world.at(at, "tick", lambda: None)

    def check() -> None:
        if world.now == 4:
            raise Violation("four")

    with pytest.raises(Violation, match="four"):
        world.run_until(100, check)
    assert world.events == 5


def test_time_that_stands_still_is_a_violation() -> None:
    world = World(1)

    def again() -> None:
        world.after(0, "again", again)

    again()
    with pytest.raises(Violation, match="one moment, such as again"):
        world.run_until(10)


def test_a_trace_keeps_the_last_lines_and_hashes_all() -> None:
    traces = [Trace(lines_max=3), Trace(lines_max=3)]
    for number, trace in enumerate(traces):
        trace.add(0, f"begin {number}")
        for at in range(1, 1000):
            trace.add(at, "tick")
    assert list(traces[0].lines) == list(traces[1].lines)
    assert traces[0].digest() != traces[1].digest()
    assert traces[0].text().splitlines()[-1] == "    0.000999  tick"


def run_of_a_process(hash_seed: int) -> str:
    return subprocess.run(
        # With all messages in the trace, so that it compares their content, too.
        [sys.executable, "-m", "tests.sim", "--seed=5", "--minutes=0.1", "--trace"],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.nightly
def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    first, second = (
        [line for line in run_of_a_process(hash_seed).splitlines() if line.startswith("seed ")]
        for hash_seed in (1, 2)
    )
    assert len(first) == 1
    assert "trace" in first[0]
    assert first == second


def test_nothing_of_the_machine_that_runs_it_reaches_a_simulation() -> None:
    for path in sorted((ROOT / "tests" / "sim").glob("*.py")):
        if path.name == "__main__.py" or path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    imported = {alias.name.partition(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module)):
                    imported = {module.partition(".")[0]}
                case ast.Attribute(value=ast.Name(id="random"), attr=attribute):
                    assert attribute == "Random", f"{path.name} draws from the global generator"
                    continue
                case _:
                    continue
            assert not imported & BANNED, f"{path.name} imports {imported & BANNED}"
