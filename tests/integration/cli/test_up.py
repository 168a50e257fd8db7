"""`millrace up` as a process: it starts, stops, dies and starts again."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode

CLEAN = "clean-shutdown"
"""What a broker leaves in its log directory when it has closed everything."""


@contextmanager
def brokers_up(
    folder: Path,
    count: int,
    *words: str,
    stderr: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """Yield a process of `millrace up --brokers`, and what it says of its brokers."""
    command = (*(sys.executable, "-m", "millrace.cli", "up", "--brokers", str(count)), *words)
    place = ("--data-dir", str(folder), "--port", "0", "--output", "json")
    with subprocess.Popen(
        [*command, *place],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **(variables or {})},
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield process, said.get("brokers", [said])


def refused(port: str, folder: Path, *words: str) -> str:
    """Return what `millrace up` says that is refused there."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "millrace.cli", "up", "--port", port),
            *("--metrics-port", "-1", "--data-dir", str(folder), *words),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.FAILED
    assert "Traceback" not in done.stderr
    return done.stderr


def test_records_are_there_after_a_graceful_stop_and_a_new_start(
    own_broker: BrokerProcess,
) -> None:
    millrace = CommandLine(own_broker.address)
    millrace.ok("topic", "create", "greetings")
    millrace.ok("produce", "greetings", stdin="hello\n")
    assert own_broker.stop() == 0
    own_broker.start()
    assert CommandLine(own_broker.address).ok("consume", "greetings") == "hello\n"


def test_acknowledged_records_are_there_after_kill_9(own_broker: BrokerProcess) -> None:
    millrace = CommandLine(own_broker.address)
    millrace.ok("topic", "create", "greetings")
    millrace.ok("produce", "greetings", stdin="hello\n")
    own_broker.kill()
    own_broker.start()
    assert CommandLine(own_broker.address).ok("consume", "greetings") == "hello\n"


def test_producing_says_for_which_broker_it_waits_and_that_it_goes_on(
    own_broker: BrokerProcess,
) -> None:
    command_line = CommandLine(own_broker.address)
    command_line.ok("topic", "create", "orders", "--partitions", "1")
    with command_line.start("produce", "orders") as command:
        assert command.stdin is not None
        assert command.stderr is not None
        command.stdin.write(b"x" * 99 + b"\n")
        command.stdin.flush()
        command_line.ok("consume", "orders", "--follow", "--max", "1")
        own_broker.kill()
        command.stdin.write((b"x" * 99 + b"\n") * 1_000)
        command.stdin.close()
        # It may say so more than once: the first record, too, may have waited for a second.
        lines = iter(command.stderr.readline, b"")
        assert b"waiting for the broker at %s ...\n" % own_broker.address.encode() in lines
        own_broker.start()
        assert b"the broker takes records again\n" in lines
        assert any(line.startswith(b"1,001 records to orders") for line in lines)
        assert command.wait(60) == ExitCode.DONE


def test_following_says_what_it_waits_for_and_that_it_goes_on(own_broker: BrokerProcess) -> None:
    command_line = CommandLine(own_broker.address)
    command_line.ok("topic", "create", "orders", "--partitions", "1")
    command_line.ok("produce", "orders", stdin="first\n")
    with command_line.start("consume", "orders", "--follow") as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == b"first\n"
        own_broker.kill()
        assert command.stderr.readline().startswith(b"waiting for orders-0 ...")
        own_broker.start()
        assert command.stderr.readline() == b"all partitions are read again\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == ExitCode.INTERRUPTED


def test_ctrl_c_does_not_wait_for_the_answers_of_a_dead_broker(own_broker: BrokerProcess) -> None:
    command_line = CommandLine(own_broker.address)
    command_line.ok("topic", "create", "orders", "--partitions", "1")
    command_line.ok("produce", "orders", stdin="first\n")
    with command_line.start("consume", "orders", "--group", "audit") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"first\n"
        own_broker.kill()
        command.send_signal(signal.SIGINT)
        # It takes five; an answer would be waited for for 30 s.
        assert command.wait(25) in (ExitCode.DONE, ExitCode.INTERRUPTED)


def test_the_greeting_says_the_address_and_what_to_try_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    words = ["up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--metrics-port", "-1"]
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == ExitCode.DONE
    address = greeting.split()[4].rstrip(",")
    assert greeting.startswith(f"Millrace is up at {address}")
    assert f"export MILLRACE_BOOTSTRAP={address}" in rest
    assert "millrace topic create greetings" in rest


def test_three_brokers_are_one_cluster_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    with brokers_up(tmp_path, 3, stderr=subprocess.PIPE) as (process, brokers):
        assert process.stderr is not None
        millrace = CommandLine(",".join(broker["address"] for broker in brokers))
        described = json.loads(millrace.ok("cluster", "describe", "--output", "json"))["brokers"]
        assert [found["name"] for found in described] == ["broker-0", "broker-1", "broker-2"]
        millrace.ok("topic", "create", "greetings", "--replication-factor", "3")
        millrace.ok("produce", "greetings", stdin="hello\n")
        os.kill(brokers[0]["pid"], signal.SIGKILL)
        # Brokers warn in the same place, for example of a lease that was lost.
        assert any("is started again" in line for line in process.stderr)
        millrace.ok("produce", "greetings", stdin="again\n")
        assert millrace.ok("consume", "greetings") == "hello\nagain\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.DONE


def test_brokers_have_log_directories_on_the_media_that_are_named(tmp_path: Path) -> None:
    fast, large = tmp_path / "fast", tmp_path / "large"
    words = ("--log-dir", f"ssd:{fast}", "--log-dir", f"hdd:{large}")
    with brokers_up(tmp_path, 2, *words) as (process, brokers):
        millrace = CommandLine(",".join(broker["address"] for broker in brokers))
        described = json.loads(millrace.ok("cluster", "describe", "--output", "json"))["brokers"]
        assert [found["media"] for found in described] == [["ssd", "hdd"]] * 2
        create = ("topic", "create", "archive", "--replication-factor", "2", "--partitions", "1")
        millrace.ok(*create, "--set", "media=hdd")
        # Only one of them has made its replica for sure when the command ends.
        of_both = (large, large.with_name("large-1"))
        wait_until(lambda: all(any(log_dir.glob("*-0")) for log_dir in of_both), "replicas")
        for folder, count in ((fast, 0), (large, 1)):
            for log_dir in (folder, folder.with_name(f"{folder.name}-1")):
                assert len(list(log_dir.glob("*-0"))) == count
        process.send_signal(signal.SIGHUP)  # As when its terminal is closed.
        assert process.wait(60) == ExitCode.DONE


def test_a_log_directory_on_an_unknown_media_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    words = ("--data-dir", str(tmp_path / "data"), "--log-dir", "tape:/dev/st0")
    result = CommandLine("").run("up", "--brokers", "2", *words)
    assert result.exit_code == ExitCode.USAGE
    assert "'tape:/dev/st0' must be a path, or ssd:PATH or hdd:PATH" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_broker_that_cannot_start_again_leaves_the_others_running(tmp_path: Path) -> None:
    with brokers_up(tmp_path, 2, stderr=subprocess.PIPE) as (process, brokers):
        assert process.stderr is not None
        (tmp_path / "broker-1.toml").write_text("[listeners.clients]\nport = -5\n")
        os.kill(brokers[1]["pid"], signal.SIGKILL)
        said = ""
        while "the others go on without it" not in said:
            said = process.stderr.readline()
            assert said
        assert said.startswith("broker-1 did not start")
        CommandLine(brokers[0]["address"]).ok("topic", "create", "t", "--replication-factor", "1")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == ExitCode.FAILED
    assert json.loads(rest.splitlines()[-1])["message"] == "broker-1 did not start again"


def test_brokers_end_in_good_order_when_the_process_that_started_them_is_killed(
    tmp_path: Path,
) -> None:
    with brokers_up(tmp_path, 2) as (process, brokers):
        process.kill()
    try:
        # A process that nobody waits for keeps its id: what it leaves says that it has ended.
        logs = [tmp_path / "log" / CLEAN, tmp_path / "log-1" / CLEAN]
        wait_until(lambda: all(log.exists() for log in logs), "all logs are closed", 60)
        addresses = [broker["address"] for broker in brokers]
        wait_until(lambda: not any(map(answers, addresses)), "nobody answers any more")
    finally:
        for broker in brokers:
            with suppress(ProcessLookupError):
                os.kill(broker["pid"], signal.SIGKILL)


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_no_broker_is_answered_with_how_to_name_one() -> None:
    with socket.socket() as taken:  # Bound, but not listening: nobody else can take the port.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CommandLine(address).run("topic", "list")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"no broker can be reached: no broker listens at {address}. " in result.stderr
    assert "--bootstrap" in result.stderr


def test_a_second_broker_on_the_same_data_is_refused(own_broker: BrokerProcess) -> None:
    folder = own_broker.data_dir
    assert f"millrace up --port 0 --data-dir {folder}-2`" in refused("0", folder)


def test_a_wrong_configuration_is_refused_with_all_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('log_dirs = ["log"]\n[listeners.clients]\nprot = 1\nport = -5\n')
    result = CommandLine("").run("broker", "--config", str(path), "--check")
    assert result.exit_code == ExitCode.FAILED
    for problem in ("listeners.clients.prot", "listeners.clients.port = -5"):
        assert problem in result.stderr


def test_a_configuration_is_checked_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('log_dirs = ["log"]\n[coordination]\npath = "metadata.sqlite"\n')
    words = ("broker", "--config", str(path), "--check", "--output", "json")
    assert json.loads(CommandLine("").ok(*words)) == {"config": str(path), "correct": True}
    path.write_text("nonsense")
    refused = CommandLine("").run(*words)
    assert json.loads(refused.stderr)["error"] == "INVALID_CONFIG"


def test_a_port_that_is_taken_is_refused_without_a_trace(address: str, tmp_path: Path) -> None:
    port = address.rpartition(":")[2]
    said = refused(port, tmp_path)
    assert said.startswith("error: clients cannot be served on")
    assert f"`millrace up --port {int(port) + 100} --data-dir {tmp_path}`" in said


def test_clients_of_kafka_are_served_where_that_is_asked_for(tmp_path: Path) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    with brokers_up(tmp_path, 2, "--kafka", "0") as (process, brokers):
        addresses = ",".join(broker["kafka_address"] for broker in brokers)
        millrace = CommandLine(brokers[0]["address"])
        millrace.ok("topic", "create", "greetings", "--partitions", "4")
        producer = kafka.Producer({"bootstrap.servers": addresses})
        for number in range(8):
            producer.produce("greetings", b"hello", partition=number % 4)
        assert producer.flush(30) == 0
        assert millrace.ok("consume", "greetings") == "hello\n" * 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_variables_count_over_the_options(count: int, tmp_path: Path) -> None:
    variables = {
        "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS": "3",
        "MILLRACE_BROKER__LISTENERS__CLIENTS_KAFKA__PORT": "0",
        "MILLRACE_BROKER__METRICS__PORT": "-1",
    }
    with brokers_up(tmp_path, count, "--metrics-port", "0", variables=variables) as (
        process,
        brokers,
    ):
        assert [broker["metrics_address"] for broker in brokers] == [None] * count
        assert all(broker["kafka_address"] for broker in brokers)
        millrace = CommandLine(brokers[0]["address"])
        millrace.ok("topic", "create", "greetings")
        described = json.loads(millrace.ok("topic", "describe", "greetings", "--output", "json"))
        assert len(described["partitions"]) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_wrong_variable_is_refused_without_a_trace(
    count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITONS", "3")
    said = refused("0", tmp_path, "--brokers", count)
    assert "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITONS: cluster.default_partitons" in said


def test_nobody_of_kafka_is_served_where_that_is_not_asked_for(tmp_path: Path) -> None:
    with brokers_up(tmp_path, 2) as (process, brokers):
        assert [broker["kafka_address"] for broker in brokers] == [None, None]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
