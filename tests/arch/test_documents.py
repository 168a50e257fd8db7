"""Settings and commands that the documents name are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.arch.repository import ROOT, files

from millrace.cli.main import cli

DOCUMENTS = [
    path for path in files() if path.suffix == ".md" and path.name not in ("CHANGELOG.md", "api.md")
]
SECTION = re.compile(r"^### `\[([a-z_.]+)\]`$(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`|^    .+$", re.MULTILINE | re.DOTALL)

COMMAND = re.compile(
    # After `kubectl millrace` a Cluster is named first.
    r"(?:^|[ (|])(?:kubectl millrace(?: -n [a-z]+)?(?: --account [a-z/]+)? [a-z]+"
    r"|(?<!kubectl )millrace)"
    r"((?: [a-z][a-z-]+)+)"
)


def broker_settings() -> dict[str, set[str]]:
    """Return the names of settings and sections by their sections, as the documents have them."""
    text = (ROOT / "docs" / "configuration.md").read_text() + "\n## "
    settings = {
        section: set(re.findall(r"^\| `([a-z_]+)` \|", body, re.MULTILINE))
        for section, body in SECTION.findall(text)
    }
    for section in settings:
        outer, _, inner = section.rpartition(".")
        if outer:
            settings[outer].add(inner)
    return settings


def code(text: str) -> Iterator[str]:
    """Yield the pieces of a document that are code."""
    return (found[0].strip("`") for found in CODE.finditer(text))


def unknown_settings(text: str) -> list[str]:
    """Return what a document names as a setting of a section, and is none."""
    settings = broker_settings()
    named = [
        (section, name)
        for piece in code(text)
        for section, name in re.findall(r"\b([a-z_.]+)\.([a-z_]+)\b", piece)
        if section in settings and "_" in name
    ]
    return [f"{section}.{name}" for section, name in named if name not in settings[section]]


def unknown_commands(text: str) -> list[str]:
    """Return what a document names as a command, and is none."""
    lost = []
    for piece in code(text):
        for words in COMMAND.findall(piece):
            command: click.Command = cli
            for word in words.split():
                if not isinstance(command, click.Group):
                    break  # What follows are its arguments.
                found = command.get_command(click.Context(command), word)
                if found is None:
                    lost.append(f"millrace{words}")
                    break
                command = found
    return lost


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_settings_and_commands_that_a_document_names_are_there(path: Path) -> None:
    text = (ROOT / path).read_text()
    assert unknown_settings(text) + unknown_commands(text) == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("`limits.message_bytes_max`", []),
        ("`limits.message_bytes_min`", ["limits.message_bytes_min"]),
        ("`millrace topic create t`, `millrace up`", []),
        ("`millrace topic make t`", ["millrace topic make"]),
        ("    millrace upp --brokers 3\n", ["millrace upp"]),
        ("millrace grinds", []),
    ],
)
def test_a_name_that_is_not_there_is_found(text: str, lost: list[str]) -> None:
    assert unknown_settings(text) + unknown_commands(text) == lost


def test_commands_of_helm_keep_the_values_that_were_given_before() -> None:
    """Else it forgets them all, such as the image's, as soon as one value is given."""
    texts = [*DOCUMENTS, *(ROOT / "charts" / "millrace" / "templates").glob("*.*")]
    commands = [
        command
        for path in texts
        for command in re.findall(r"helm upgrade(?:[^\n]|\\\n)*", path.read_text())
        if "--set" in command
    ]
    assert len(commands) >= 5
    assert [said for said in commands if "--reset-then-reuse-values" not in said] == []


def test_runbooks_say_that_a_topic_is_changed_by_its_resource_on_kubernetes() -> None:
    """There the operator undoes what somebody changes at the command line."""
    runbooks = (ROOT / "docs" / "runbooks").glob("*.md")
    found = {path.name: path.read_text() for path in runbooks}
    alter = {name: text for name, text in found.items() if "millrace topic alter" in text}
    assert len(alter) >= 4
    there = "[Topic](../kubernetes.md#the-command-line-on-kubernetes)"
    assert [name for name, text in alter.items() if there not in text] == []


def test_nobody_is_told_to_install_the_package_of_this_name_that_others_published() -> None:
    code_files = [path for path in files() if path.suffix in (".py", ".md", ".txt", ".yaml")]
    told = re.compile(r"pip install '?millrace\b(?!-[0-9*])")
    assert [
        str(path)
        for path in code_files
        if path != Path(__file__) and told.search(path.read_text(encoding="utf-8"))
    ] == []
