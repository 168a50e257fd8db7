"""Children of the benchmark: what they print, what they use, and that none outlives its time."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from bench.processes import (
    LoadFailedError,
    by_protocol,
    children,
    connections,
    last_json,
    run_load,
    run_loads,
    start,
    stop,
    thread_waits,
    until,
    usage,
)

MEGABYTE = 1_000_000


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_load_is_accounted_for_by_its_own_cpu_time_and_memory(tmp_path: Path) -> None:
    busy = "import time\nheld = bytearray(50_000_000)\nwhile time.process_time() < 0.5: pass"
    _, used = run_load(program(busy), tmp_path / "load.log", timeout_s=30)
    assert 0.5 <= used.cpu_seconds < 3
    assert 50 * MEGABYTE < used.peak_rss_bytes < 150 * MEGABYTE


def test_a_load_answers_by_the_last_line_that_it_prints(tmp_path: Path) -> None:
    printed, _ = run_load(
        program("print('starting'); print('{\"records\": 3}')"), tmp_path / "load.log", timeout_s=30
    )
    assert last_json(printed) == {"records": 3}


def test_a_load_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(LoadFailedError, match="ended with 1:\nno broker"):
        run_load(program("raise SystemExit('no broker')"), tmp_path / "load.log", timeout_s=30)


def test_a_load_that_does_not_end_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    endless = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
    with pytest.raises(LoadFailedError, match="took longer than 2 s"):
        run_load(program(endless + "time.sleep(60)"), tmp_path / "load.log", timeout_s=2)
    assert not Path("/proc", pid_file.read_text()).exists()


def test_loads_run_at_the_same_time_and_the_failure_of_one_ends_all(tmp_path: Path) -> None:
    commands = [program("import time; time.sleep(60)"), program("raise SystemExit('refused')")]
    started = time.monotonic()
    with pytest.raises(LoadFailedError, match="refused"):
        run_loads(commands, tmp_path / "load.log", timeout_s=30)
    assert time.monotonic() - started < 30


def test_usage_is_what_the_process_has_spent_so_far(tmp_path: Path) -> None:
    before = usage(os.getpid())
    while usage(os.getpid()).since(before).cpu_seconds < 0.05:
        pass
    assert usage(os.getpid()).peak_rss_bytes >= MEGABYTE


def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\n"
    log = tmp_path / "stubborn.log"
    process = start(program(stubborn + "time.sleep(60)"), log)
    deadline = time.monotonic() + 30
    while "up" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    stop(process, timeout_s=0.2)
    assert process.returncode == -9


def test_children_are_found_with_their_command_lines_while_they_run(tmp_path: Path) -> None:
    child = start(program("import time\ntime.sleep(60)"), tmp_path / "log")
    try:
        found = until(
            lambda: {pid: c for pid, c in children(os.getpid()) if "time.sleep" in c[-1]} or None,
            "the child",
            10,
        )
        assert list(found) == [child.pid]
    finally:
        child.kill()
    child.wait()
    assert child.pid not in dict(children(os.getpid()))


def test_several_processes_are_accounted_for_together() -> None:
    alone, twice = usage(os.getpid()), usage(os.getpid(), os.getpid())
    assert twice.peak_rss_bytes >= 2 * alone.peak_rss_bytes
    assert twice.cpu_seconds >= 2 * alone.cpu_seconds


def test_an_answer_that_does_not_come_in_time_is_a_failure() -> None:
    answers = iter([None, None, "there"])
    assert until(lambda: next(answers), "an answer", 10, 0) == "there"
    with pytest.raises(LoadFailedError, match="an answer did not come in 0 s"):
        until(lambda: None, "an answer", 0, 0)


def test_the_waits_of_a_process_are_those_of_all_its_threads(tmp_path: Path) -> None:
    waiting = (
        "import threading, time\n"
        "def wait():\n"
        "    for _ in range(50): time.sleep(0.001)\n"
        "    print('waited', flush=True)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=wait).start()\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "load.log"
    process = start(program(waiting), log)
    try:
        until(lambda: "waited" in log.read_text() or None, "the end of the waits", 30)
        waits = thread_waits(process.pid)
    finally:
        stop(process)
    assert len(waits) == 2
    assert 50 <= sum(waits.values()) < 500


def test_the_connections_of_a_process_are_counted_by_the_port_of_the_other_side() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = connections(os.getpid())
        with (
            socket.create_connection(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)),
        ):
            assert connections(os.getpid()) == {**before, port: 2}


def test_connections_are_of_grpc_where_clients_begin_and_of_drpc_elsewhere() -> None:
    found = {"9092": 2, "19092": 1, "9093": 1}
    assert by_protocol(found, "127.0.0.1:9092") == {"gRPC": 2, "DRPC": 2}
    assert by_protocol(found, "127.0.0.1:9092,127.0.0.1:9093") == {"gRPC": 3, "DRPC": 1}
