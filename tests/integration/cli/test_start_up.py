import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from millrace.cli.console.failures import ExitCode

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = "millrace.cli.commands."
HEAVY = {"grpc", "millrace.broker", "millrace.client", "numpy", "pyarrow", "rich"}


def test_the_command_line_is_read_before_anything_heavy_is_imported() -> None:
    modules = imported("list(cli.commands.values())")
    assert HEAVY.intersection(modules) == set()
    assert len({module for module in modules if module.startswith(COMMANDS)}) > 15


def test_a_command_does_not_wait_for_the_import_of_the_others() -> None:
    modules = imported("cli.main(['consume', '--help'], standalone_mode=False)")
    assert [module for module in modules if module.startswith(COMMANDS)] == [f"{COMMANDS}consume"]


def imported(program: str) -> list[str]:
    """Return all modules that a program with the command line imports."""
    code = f"import sys; from millrace.cli.main import cli; {program}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return ran.stdout.splitlines()[-1].split()


def test_the_default_address_is_where_the_embedded_broker_listens() -> None:
    from millrace.cli.cluster import DEFAULT_BOOTSTRAP
    from millrace.core.listeners_config import DEFAULT_PORT

    assert f"127.0.0.1:{DEFAULT_PORT}" == DEFAULT_BOOTSTRAP


SIGNAL_AT_IMPORT = """
import os, signal, sys

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Signal())
"""
CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}


def signalled(
    tmp_path: Path, number: signal.Signals, at_import: str, *words: str
) -> tuple[int, str]:
    """Return how Python ends, and what it says, if a signal comes when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_AT_IMPORT)
    search_path = os.pathsep.join([str(tmp_path), *sys.path])
    chosen = {"AT_IMPORT": at_import, "SIGNAL": str(int(number)), "PYTHONPATH": search_path}
    ran = subprocess.run(
        [*words, "consume", "t", "--follow", "--bootstrap", "127.0.0.1:1"],
        env=os.environ | chosen,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.returncode, ran.stdout + ran.stderr.strip()  # Ctrl-C ends a terminal's line.


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize(
    "at_import", ["click", "millrace.cli.main", "millrace.cli.commands.consume", "millrace.client"]
)
def test_a_signal_while_the_command_is_imported_ends_it_and_the_exit_code_names_it(
    tmp_path: Path, at_import: str, number: signal.Signals
) -> None:
    command = (sys.executable, "-m", "millrace.cli")
    assert signalled(tmp_path, number, at_import, *command) == (CODES[number], "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes namespaces of processes")
@pytest.mark.parametrize("at_import", ["click", "millrace.cli.commands.consume", "millrace.client"])
def test_sigterm_while_the_command_is_imported_ends_it_as_process_1(
    tmp_path: Path, at_import: str
) -> None:
    command = ("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "millrace.cli")
    ended = signalled(tmp_path, signal.SIGTERM, at_import, *command)
    assert ended == (ExitCode.TERMINATED, "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes namespaces of processes")
def test_in_the_image_a_sigterm_before_the_interpreter_starts_ends_the_command(
    tmp_path: Path,
) -> None:
    (line,) = re.findall("^ENTRYPOINT (.*)$", (ROOT / "images" / "Dockerfile").read_text(), re.M)
    *before, name = json.loads(line)
    assert name == "millrace"
    start = ("sh", "-c", 'kill -TERM $$; exec "$@"', "sh", sys.executable, "-m", "millrace.cli")
    command = ("unshare", "--pid", "--fork", "--kill-child", *before, *start)
    ended = signalled(tmp_path, signal.SIGTERM, "none", *command)
    assert ended == (ExitCode.TERMINATED, "")


@pytest.mark.parametrize(
    "target", tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
)
def test_every_program_sets_its_handlers_before_its_imports(tmp_path: Path, target: str) -> None:
    module, _, function = target.partition(":")
    script = f"from {module} import {function}; {function}()"
    command = (sys.executable, "-c", script)
    ended = signalled(tmp_path, signal.SIGTERM, "millrace.cli.command", *command)
    assert ended == (ExitCode.TERMINATED, "")


def test_ctrl_c_that_the_shell_ignores_in_the_background_stays_ignored(tmp_path: Path) -> None:
    command = ("env", "--ignore-signal=INT", sys.executable, "-m", "millrace.cli")
    code, told = signalled(tmp_path, signal.SIGINT, "click", *command)
    assert code == ExitCode.UNREACHABLE, told
