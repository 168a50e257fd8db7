"""Access control by the command line: tokens, and the walk of docs/security.md as it stands."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from demo.up_process import UpProcess
from tests.arch.repository import ROOT
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode


class Terminal:
    """Runs lines of a shell in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        millrace = folder / "bin" / "millrace"
        millrace.write_text(f'#!/bin/sh\nexec {sys.executable} -m millrace.cli "$@"\n')
        millrace.chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which("sh") or "sh", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def blocks() -> list[list[str]]:
    """Return the commands of the walk, block by block."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (walk,) = re.findall(r"^## Five minutes\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^ {4}.*\n)+", walk, re.MULTILINE)
    return [[line[4:] for line in block.splitlines()] for block in found]


class Guarded(UpProcess):
    """A broker with certificates in a folder, and rules and tokens in another one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self.address = ""

    def start(self) -> None:
        tls, access = str(self._folder / "tls"), str(self._folder / "access")
        self.address = self.run("--port", "0", "--tls", tls, "--access", access)["address"]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    process = Guarded(tmp_path)
    try:
        process.start()
        yield process
    finally:
        process.abandon()


@pytest.mark.timeout(300)
def test_the_walk_of_the_page_about_security_goes_as_it_says(
    terminal: Terminal, guarded: Guarded
) -> None:
    [up], prepare, use, *refused = blocks()
    assert up == "millrace up --tls tls --access access"
    variables = [line for line in prepare if line.startswith("export ")]
    begin = "; ".join([f"export MILLRACE_BOOTSTRAP={guarded.address}", *variables, ""])
    done = terminal.run(begin + " && ".join(prepare[len(variables) :]))
    assert done.returncode == 0, done.stderr
    # The page gives brokers two seconds, which may be too few where others use the machine.
    for token in ("orders.token", "reports.token"):
        known = f"{begin}millrace topic describe shop/orders --token-file {token}"
        wait_until(partial(is_done, terminal, known), f"{token} counts, and so do its rules")
    for line, expected in zip(use, ("", "one\n"), strict=True):
        done = terminal.run(begin + line)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    for line in (line for block in refused for line in block):
        command, _, error = line.partition("  # ")
        if error:
            wait_until(partial(is_refused, terminal, begin + command, error), line)
        else:
            done = terminal.run(begin + command)
            assert done.returncode == 0, done.stderr


def is_done(terminal: Terminal, script: str) -> bool:
    return terminal.run(script).returncode == 0


def is_refused(terminal: Terminal, script: str, error: str) -> bool:
    done = terminal.run(script)
    return done.returncode != 0 and f"({error})" in done.stderr


def test_the_folder_of_access_is_for_its_owner_alone(tmp_path: Path, guarded: Guarded) -> None:
    for name in ("rules.toml", "tokens", "admin.token"):
        mode = (tmp_path / "access" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, name
    first = (tmp_path / "access" / "admin.token").read_text()
    assert first.strip() not in (tmp_path / "access" / "tokens").read_text()
    guarded.abandon()
    guarded.start()
    assert (tmp_path / "access" / "admin.token").read_text() == first, "it is made once"


def test_several_brokers_share_the_folder(tmp_path: Path, terminal: Terminal) -> None:
    command = [sys.executable, "-m", "millrace.cli", "up", "--brokers", "3", "--port", "0"]
    place = ["--data-dir", str(tmp_path / "data"), "--access", str(tmp_path / "access")]
    with subprocess.Popen(
        [*command, *place, "--output", "json"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            brokers = json.loads(process.stdout.readline())["brokers"]
            for broker in brokers:
                at = f"millrace topic list --bootstrap {broker['address']}"
                assert "(AUTHENTICATION_FAILED)" in terminal.run(at).stderr
                done = terminal.run(f"{at} --token-file access/admin.token")
                assert done.returncode == 0, done.stderr
        finally:
            process.terminate()
            process.wait(60)


def test_tokens_are_made_listed_and_removed(terminal: Terminal) -> None:
    made = terminal.run("millrace token new alice --group shop --expires-in 1d")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert re.fullmatch(r"mlr_[\w-]{43}", token)
    assert token not in (terminal.folder / "access" / "tokens").read_text()
    assert terminal.run("millrace token new alice --out a.token").stdout == ""
    assert stat.S_IMODE((terminal.folder / "a.token").stat().st_mode) == 0o600
    listed = json.loads(terminal.run("millrace token list --output json").stdout)
    assert [entry["name"] for entry in listed] == ["alice", "alice"]
    assert (listed[0]["groups"], listed[1]["expires_at"]) == (["shop"], None)
    one = terminal.run(f"millrace token remove alice --id {listed[0]['id']}")
    assert one.returncode == 0, one.stderr
    listed = json.loads(terminal.run("millrace token list --output json").stdout)
    assert len(listed) == 1
    assert terminal.run("millrace token remove alice").returncode == 0
    gone = terminal.run("millrace token remove alice")
    assert gone.returncode == ExitCode.NOT_FOUND


@pytest.mark.parametrize("name", ["anonymous", "group:x", "a*", ""])
def test_not_every_name_gets_a_token(terminal: Terminal, name: str) -> None:
    refused = terminal.run(f"millrace token new '{name}'")
    assert refused.returncode == ExitCode.USAGE
    assert not (terminal.folder / "access").exists()


def test_a_damaged_file_of_tokens_stays_as_it_is(terminal: Terminal) -> None:
    (terminal.folder / "access").mkdir()
    path = terminal.folder / "access" / "tokens"
    path.write_text("{}\n")
    refused = terminal.run("millrace token new alice")
    assert refused.returncode != 0
    assert "line 1: " in refused.stderr
    assert path.read_text() == "{}\n"


def test_tokens_made_at_the_same_time_are_all_there(terminal: Terminal) -> None:
    names = [f"n{number}" for number in range(4)]
    script = " & ".join(f"millrace token new {name} >/dev/null" for name in names) + "; wait"
    terminal.run(script)
    wait_until(
        lambda: len(json.loads(terminal.run("millrace token list -o json").stdout)) == len(names),
        "all are there",
    )
