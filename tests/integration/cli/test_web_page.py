"""The web page of `millrace up` begins with the first visit, comes back, and outlives nothing."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode
from millrace.cli.local.web_page import WebPage
from millrace.cli.main import cli


def up(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start `millrace up` on any free ports."""
    command = [
        *(sys.executable, "-m", "millrace.cli", "up", "--data-dir", str(folder)),
        *("--port", "0", "--metrics-port", "-1", "--output", "json", *words),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def announced(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def visit(address: str) -> str:
    with urlopen(f"{address}/topics", timeout=60) as response:
        return str(response.read().decode())


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # This thread has ended meanwhile.
            found += [int(number) for number in (task / "children").read_text().split()]
    return found


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_page_begins_with_a_visit_and_comes_back_when_it_is_killed(
    tmp_path: Path, brokers: int
) -> None:
    with up(tmp_path, "--brokers", str(brokers)) as process:
        said = announced(process)
        address = said["web_address"]
        known = said["brokers"] if brokers > 1 else [said]
        CommandLine(known[0]["address"]).ok("topic", "create", "greetings")
        before = set(children(process.pid))
        assert "greetings" in visit(address)
        (page,) = set(children(process.pid)) - before
        assert "greetings" in visit(address)
        os.kill(page, signal.SIGKILL)
        wait_until(lambda: page not in children(process.pid), "the page has ended")
        assert "greetings" in visit(address)
        (other,) = set(children(process.pid)) - before
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.DONE
        assert not Path(f"/proc/{other}").exists()


@contextmanager
def descriptors_max(limit: int) -> Iterator[None]:
    """Bound the descriptors of this process for a while; those that are open stay."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def style(peer: socket.socket) -> bytes:
    """Return what the page answers on a connection to a question that takes no broker."""
    peer.settimeout(60)
    peer.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while read := peer.recv(1 << 16):
        answer += read
    return answer


def place_of(page: WebPage) -> tuple[str, int]:
    host, _, port = page.address.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_a_process_with_many_open_files_has_a_page() -> None:
    with descriptors_max(2048), ExitStack() as files:
        while files.enter_context(open(os.devnull, "rb")).fileno() < 1024:
            pass
        with WebPage(0, is_chosen=False) as page:
            page.start("127.0.0.1:1")
            with socket.create_connection(place_of(page)) as peer:
                assert style(peer).startswith(b"HTTP/1.1 200 ")


def test_a_page_that_does_not_start_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def is_said() -> bool:
        said.append(capsys.readouterr().err)
        return "the web page does not start" in "".join(said)

    with WebPage(0, is_chosen=False) as page, socket.socket() as peer:
        page.start("127.0.0.1:1")
        with descriptors_max(3):  # So there is none for the pipe to its process.
            peer.connect(place_of(page))
            wait_until(is_said, "the failure is said")
        assert style(peer).startswith(b"HTTP/1.1 200 ")
    assert "".join(said).count("does not start") == 1


def test_the_page_ends_with_a_millrace_up_that_is_killed(own_broker: BrokerProcess) -> None:
    own_broker.stop()
    with up(own_broker.data_dir) as process:
        address = announced(process)["web_address"]
        visit(address)
        (page,) = children(process.pid)
        process.kill()
        wait_until(lambda: not Path(f"/proc/{page}").exists(), "the page has ended")


def test_a_stop_before_any_visit_waits_for_none(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        announced(process)
        assert children(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.DONE


def test_without_a_page_there_is_none(tmp_path: Path) -> None:
    with up(tmp_path, "--web-port", "-1") as process:
        assert announced(process)["web_address"] is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.DONE


def test_a_port_that_is_taken_is_refused_where_a_user_has_chosen_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (
            ("up", "--data-dir", str(tmp_path), "--web-port", port),
            ("web", "--port", port),
        ):
            result = CommandLine("127.0.0.1:1").run(*words)
            assert result.exit_code == ExitCode.FAILED
            assert f"served on 127.0.0.1:{port}: Address already in use\n" in result.output
            assert "0: any that is free" in result.output
    assert list(tmp_path.iterdir()) == []


def test_without_kubernetes_the_page_of_its_clusters_says_what_to_do(tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(tmp_path / "absent"), "KUBERNETES_SERVICE_HOST": None}
    result = CliRunner(env=environment).invoke(cli, ["web", "--kubernetes", "--port", "0"])
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "no Kubernetes cluster is configured" in result.output
    assert "set KUBECONFIG" in result.output


def test_the_greeting_names_the_page(tmp_path: Path) -> None:
    words = ["up", "--data-dir", str(tmp_path), "--port", "0", "--metrics-port", "-1"]
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.stdout.readline().startswith("Web page: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == ExitCode.DONE
