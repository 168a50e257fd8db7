"""`millrace top` beside real brokers, one of which is killed; also in a terminal, with its keys."""

import json
import os
import pty
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncConsumer, SyncProducer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def millrace(cluster: RunningCluster) -> CommandLine:
    line = CommandLine(cluster.bootstrap)
    line.ok("topic", "create", "orders", "--partitions", "3", "--replication-factor", "3")
    return line


def document(millrace: CommandLine, interval: str = "0.2") -> Any:
    return json.loads(millrace.ok("top", "--once", "--interval", interval, "--output", "json"))


def test_rates_of_producers_and_lags_of_groups_are_shown(
    cluster: RunningCluster, millrace: CommandLine
) -> None:
    ended = threading.Event()
    seen: list[Any] = []

    def write() -> None:
        with SyncProducer(cluster.bootstrap, linger_ms=0) as producer:
            while not ended.is_set():
                producer.send("orders", bytes(1000)).result(60)

    def is_shown() -> bool:
        consumer.poll(100)
        consumer.commit()
        seen[:] = [document(millrace)]
        rates, is_healthy = seen[0]["topics"][0], bool(seen[0]["healthy"])
        is_read = rates["appended_bytes_per_second"] and rates["fetched_bytes_per_second"]
        return is_healthy and bool(is_read)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with SyncConsumer(cluster.bootstrap, group="billing") as consumer:
            consumer.subscribe(["orders"])
            wait_until(is_shown, "rates of the topic", 60)
    finally:
        ended.set()
        writer.join()
    (topic,) = seen[0]["topics"]
    assert topic["records_per_second"] > 0
    (group,) = seen[0]["groups"]
    assert (group["name"], group["state"], group["members"]) == ("billing", "stable", 1)
    assert [broker["state"] for broker in seen[0]["brokers"]] == ["alive"] * 3
    assert seen[0]["healthy"]


def test_the_plain_table_says_that_all_is_well(millrace: CommandLine) -> None:
    shown = millrace.ok("top", "--once", "--interval", "0.2")
    assert "3 of 3 brokers up" in shown
    assert "healthy: every partition is led" in shown
    assert "orders" in shown


def test_without_a_terminal_the_live_view_says_what_to_do(millrace: CommandLine) -> None:
    result = millrace.run("top")
    assert result.exit_code == 1
    assert "add --once" in result.output


def test_a_view_in_a_terminal_shows_a_killed_broker_and_ends_with_q(
    cluster: RunningCluster, millrace: CommandLine
) -> None:
    terminal = Terminal(
        [sys.executable, "-m", "millrace.cli", "top", "--interval", "0.2"], cluster.bootstrap
    )
    try:
        terminal.wait_for("3 of 3 brokers up")
        terminal.wait_for("s order by name")
        terminal.press("s")
        terminal.wait_for("s order by rate")
        cluster[1].kill()
        terminal.wait_for("down: broker 1")
        terminal.press("q")
        assert terminal.exit_code() == 0
    finally:
        terminal.abandon()

    def is_fenced() -> bool:  # First it does not answer, and then it is known why.
        return bool(document(millrace)["brokers"][1]["state"] == "fenced")

    wait_until(is_fenced, "the controller has fenced it")
    found = document(millrace)
    assert [broker["state"] for broker in found["brokers"]] == ["alive", "fenced", "alive"]
    assert found["brokers"][1]["size_bytes"] is None
    assert found["problems"][0] == "down: broker 1"
    assert not found["healthy"]


class Terminal:
    """A program in a terminal of its own; what it has written so far is kept."""

    def __init__(self, words: list[str], bootstrap: str) -> None:
        self._seen = b""
        self.pid, self._file = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child becomes the program.
            environment = os.environ | {
                "MILLRACE_BOOTSTRAP": bootstrap,
                "TERM": "xterm",
                "LINES": "40",
                "COLUMNS": "120",
            }
            os.execve(words[0], words, environment)

    def wait_for(self, text: str) -> None:
        """Return when the program has written this; what came before is forgotten."""
        deadline = time.monotonic() + 30
        while text.encode() not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self._seen[-2000:]!r}"
            ready, _, _ = select.select([self._file], [], [], 0.1)
            if ready:
                self._seen += os.read(self._file, 1 << 16)
        self._seen = self._seen.partition(text.encode())[2]

    def press(self, key: str) -> None:
        os.write(self._file, key.encode())

    def exit_code(self) -> int:
        """Return the exit code once the program has ended; what it writes is read meanwhile."""
        deadline = time.monotonic() + 30
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "the program did not end"
            ready, _, _ = select.select([self._file], [], [], 0.1)
            if ready:
                try:
                    os.read(self._file, 1 << 16)
                except OSError:  # Its end of the terminal is closed.
                    continue

    def abandon(self) -> None:
        if self.pid:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._file)
