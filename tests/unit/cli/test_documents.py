"""What the documents and the hints tell people to type is there to be typed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from millrace.cli.explanations import _HINTS
from millrace.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    "docs/clusters.md",
    "docs/command-line.md",
    "docs/configuration.md",
    "docs/faults.md",
    "docs/format.md",
    "docs/metrics.md",
    "docs/performance.md",
    "docs/safety.md",
    "docs/spark.md",
]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

COMMAND_LINE = re.compile(r"`millrace ([^`]+)`|^ {4}(?:.*\| )?millrace (.+)$", re.MULTILINE)
MAKE_LINE = re.compile(r"(?:`|^ {4})make ([a-z0-9-]+)", re.MULTILINE)


def command_lines(text: str) -> Iterator[str]:
    """The words after `millrace` in a document's code."""
    for found in COMMAND_LINE.findall(text):
        yield found[0] or found[1]


def missing(line: str) -> list[str]:
    """The words of a command line that no command or option answers to."""
    command: click.Command = cli
    lost: list[str] = []
    for word in shlex.split(line, comments=True):
        options = [name for option in command.params for name in option.opts]
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return [*lost, word]
            command = found
        elif word.startswith("--") and word not in (*options, "--help", "--version"):
            lost.append(word)
    return lost


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_commands_and_options_that_exist(name: str) -> None:
    lines = list(command_lines((ROOT / name).read_text()))
    assert {line: missing(line) for line in lines if missing(line)} == {}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_targets_of_make_that_exist(name: str) -> None:
    assert set(MAKE_LINE.findall((ROOT / name).read_text())) <= TARGETS


def test_hints_name_commands_and_options_that_exist() -> None:
    lines = [line for hint in _HINTS.values() for line in command_lines(hint)]
    assert lines
    assert {line: missing(line) for line in lines if missing(line)} == {}
