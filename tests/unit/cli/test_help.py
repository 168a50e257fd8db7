"""Every command teaches: help with examples, and examples that parse."""

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from millrace.cli.console.failures import ExitCode
from millrace.cli.main import cli

Path = tuple[str, ...]
PROFILES = ("staging", "production")
"""Those of the examples."""


def commands(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))


ALL = list(commands(cli))


def examples() -> Iterator[list[str]]:
    """Every `millrace ...` of every example, as its words."""
    for _, command in ALL:
        for line in getattr(command, "examples", []):
            words = shlex.split(line, comments=True)
            for start in [i for i, word in enumerate(words) if word == "millrace"]:
                rest = words[start + 1 :]
                ends = [i for i, word in enumerate(rest) if word[0] in "|<>" or word == "&&"]
                yield rest[: min(ends, default=len(rest))]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_the_help_of_every_command_describes_it_and_shows_an_example(
    path: Path, command: click.Command
) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == ExitCode.DONE
    assert command.help
    _, _, shown = result.output.partition("\nExamples:\n")
    assert " ".join(["millrace", *path]) in shown


def test_a_list_of_commands_has_their_first_sentences_whole() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    listed = " ".join(output.partition("\nExamples:\n")[0].partition("Commands:")[2].split())
    assert "Copy the records of SOURCE to DESTINATION, with keys, headers and timestamps." in listed
    assert "..." not in listed


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_option_says_what_it_is_for(path: Path, command: click.Command) -> None:
    options = [param for param in command.params if isinstance(param, click.Option)]
    without = [option.name for option in options if not option.help or option.help[0] == "["]
    assert without == []


def test_every_command_with_a_result_prints_it_as_json_too() -> None:
    without = {
        " ".join(path)
        for path, command in ALL
        if not isinstance(command, click.Group)
        and "output" not in [option.name for option in command.params]
    }
    # The operator has no result, a completion is for the shell, and a plan is always JSON.
    assert without == {"operator", "completion", "reassign plan"}


@pytest.mark.parametrize("words", list(examples()), ids=" ".join)
def test_every_example_is_a_correct_command_line(
    words: list[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("example")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (folder / "millrace").mkdir()
    profiles = "".join(f"[profiles.{profile}]\nbootstrap = 'a:1'\n" for profile in PROFILES)
    (folder / "millrace" / "config.toml").write_text(profiles)
    for name in ("millrace-data", "ssd", "hdd"):
        (folder / name).mkdir()
    for word in words:
        if "." in word and not word.startswith("-") and "=" not in word and "/" not in word:
            (folder / word).touch()
    command: click.Command = cli
    context = click.Context(cli, info_name="millrace")
    rest = list(words)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, rest, parent=context)


def test_the_exit_codes_are_documented() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    for code in ExitCode:
        assert f"{code:>3}  {code.meaning}" in output


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["topci"])
    assert result.exit_code == ExitCode.USAGE
    assert "topic" in result.stderr


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("millrace") in CliRunner().invoke(cli, ["--version"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_the_program_itself(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == ExitCode.DONE
    assert "_MILLRACE_COMPLETE" in result.stdout
