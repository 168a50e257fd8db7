"""Profiles: what the file may say, what commands write, and which cluster goes before."""

import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from millrace.cli.command import (
    Command,
    bootstrap_option,
    destination_of,
    instead_of_profile,
    output_option,
    to_bootstrap_option,
)
from millrace.cli.console.failures import ExitCode
from millrace.cli.credentials import Credentials
from millrace.cli.main import cli
from millrace.client._settings import ClientConfig


@click.command(cls=Command)
@to_bootstrap_option
@bootstrap_option
@output_option
def asks(bootstrap: str, to_bootstrap: str | None, output: str) -> None:
    """Show which brokers a command would ask."""
    click.echo(f"{bootstrap} {to_bootstrap}")


@click.command(cls=Command)
@to_bootstrap_option
@bootstrap_option
@click.option("--kubernetes", is_flag=True, is_eager=True, callback=instead_of_profile)
@output_option
def proves(bootstrap: str, to_bootstrap: str | None, kubernetes: bool, output: str) -> None:
    """Show with which files a command would prove itself, to whom it reads from and writes to."""
    place = destination_of(bootstrap, to_bootstrap)
    sides = {bootstrap: Credentials(), place.bootstrap: place.credentials}
    for address, files in sides.items():
        config = ClientConfig(**files._asdict())
        tls, token = config._tls_files, config._chosen_token
        shown = ("", "") if tls is None else (tls.ca, tls.key)
        proof = "" if token is None else token.name
        click.echo(" ".join([address, *(file or "-" for file in (*shown, proof))]))


class User:
    """A user with a folder of configuration."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "millrace" / "config.toml"
        self._environment = {"XDG_CONFIG_HOME": str(folder)}

    def run(self, *words: str) -> Result:
        return CliRunner(env=self._environment).invoke(cli, ["profile", *words])

    def ok(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == ExitCode.DONE, result.output
        return result.stdout

    def asks(self, *words: str, **environment: str) -> Result:
        return CliRunner(env=self._environment | environment).invoke(asks, words)

    def asked(self, *words: str, **environment: str) -> list[str]:
        """Return which brokers are asked to read from and to write to."""
        result = self.asks(*words, **environment)
        assert result.exit_code == ExitCode.DONE, result.output
        return result.stdout.split()

    def proved(self, *words: str, **environment: str) -> dict[str, list[str]]:
        """Return with which files a command proves itself, by the address that it does so to."""
        result = CliRunner(env=self._environment | environment).invoke(proves, words)
        assert result.exit_code == ExitCode.DONE, result.output
        return {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}

    def write(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


NO_FILES = dict.fromkeys(Credentials._fields)
VARIABLES = {
    "MILLRACE_TLS_CA_FILE": "variable-ca",
    "MILLRACE_TLS_CERTIFICATE_FILE": "variable-certificate",
    "MILLRACE_TLS_KEY_FILE": "variable-key",
    "MILLRACE_TOKEN_FILE": "variable-token",
}
OF_VARIABLES = ["variable-ca", "variable-key", "variable-token"]
NOTHING = ["-", "-", "-"]


def test_profiles_are_made_used_listed_and_deleted(user: User) -> None:
    assert "no profiles yet" in user.run("list").stderr
    user.ok("set", "staging", "--bootstrap", "a:1,b:2")
    user.ok("set", "production", "--bootstrap", "c:3")
    user.ok("set", "staging", "--bootstrap", "a:1,b:3")
    user.ok("use", "staging")
    assert json.loads(user.ok("list", "--output", "json")) == [
        {"name": "production", "bootstrap": "c:3", **NO_FILES, "current": False},
        {"name": "staging", "bootstrap": "a:1,b:3", **NO_FILES, "current": True},
    ]
    user.ok("use", "--none")
    assert "current" not in user.file.read_text()
    user.ok("use", "staging")
    user.ok("delete", "staging")
    assert [row["name"] for row in json.loads(user.ok("list", "-o", "json"))] == ["production"]
    assert list(user.file.parent.iterdir()) == [user.file]


def test_the_nearer_says_which_cluster_is_meant(user: User) -> None:
    user.ok("set", "used", "--bootstrap", "used:1")
    user.ok("set", "named", "--bootstrap", "named:1")
    assert user.asked()[0] == "127.0.0.1:7092"
    user.ok("use", "used")
    by_profile = {"MILLRACE_PROFILE": "named"}
    by_address = {**by_profile, "MILLRACE_BOOTSTRAP": "variable:1"}
    assert user.asked()[0] == "used:1"
    assert user.asked(**by_profile)[0] == "named:1"
    assert user.asked(**by_address)[0] == "variable:1"
    assert user.asked("--profile", "used", **by_address)[0] == "used:1"
    assert user.asked("--bootstrap", "option:1", **by_address)[0] == "option:1"
    both = user.asks("--bootstrap", "option:1", "--profile", "used")
    assert both.exit_code == ExitCode.USAGE
    assert "which is meant?" in both.stderr


def test_a_variable_that_goes_before_the_profile_is_told(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ok("set", "staging", "--bootstrap", "a:1")
    monkeypatch.setenv("MILLRACE_BOOTSTRAP", "b:1")
    assert "MILLRACE_BOOTSTRAP is set, and goes before it" in user.run("use", "staging").stderr


def test_the_cluster_to_write_to_has_a_profile_of_its_own(user: User) -> None:
    user.ok("set", "used", "--bootstrap", "used:1")
    user.ok("set", "other", "--bootstrap", "other:1")
    user.ok("use", "used")
    assert user.asked("--to-profile", "other") == ["used:1", "other:1"]
    assert user.asked("--to-bootstrap", "third:1", "--profile", "other") == ["other:1", "third:1"]
    assert user.asked() == ["used:1", "None"]


def test_a_profile_has_the_files_for_its_cluster_and_what_is_not_given_stays(
    user: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    user.ok("set", "a", "--bootstrap", "a:1", "--tls-ca-file", "ca.crt", "--token-file", "token")
    user.ok("set", "a", "--tls-certificate-file", "/c", "--tls-key-file", "/k")
    user.ok("set", "a", "--bootstrap", "a:2", "--token-file", "")
    (found,) = json.loads(user.ok("list", "--output", "json"))
    assert found == {
        "name": "a",
        "bootstrap": "a:2",
        "tls_ca_file": str(tmp_path / "ca.crt"),
        "tls_certificate_file": "/c",
        "tls_key_file": "/k",
        "token_file": None,
        "current": False,
    }
    user.ok("set", "a", "--tls-ca-file", "system")
    assert user.proved("--profile", "a") == {"a:2": ["system", "/k", "-"]}


def test_files_in_a_file_written_by_hand_are_relative_to_it(user: User) -> None:
    user.write("[profiles.a]\nbootstrap = 'a:1'\ntls_ca_file = 'ca.crt'\ntoken_file = '~/t'")
    found = user.proved("--profile", "a", HOME="/nowhere/x")
    assert found == {"a:1": [str(user.file.parent / "ca.crt"), "-", "/nowhere/x/t"]}


def test_credentials_come_from_where_the_addresses_come_from(user: User) -> None:
    user.ok("set", "guarded", "--bootstrap", "g:1", "--tls-ca-file", "/ca", "--token-file", "/t")
    user.ok("set", "plain", "--bootstrap", "p:1")
    assert user.proved("--bootstrap", "x:1", **VARIABLES) == {"x:1": OF_VARIABLES}
    assert user.proved("--profile", "plain", **VARIABLES) == {"p:1": NOTHING}
    guarded = {"g:1": ["/ca", "-", "/t"]}
    assert user.proved("--profile", "guarded", **VARIABLES) == guarded
    assert user.proved(MILLRACE_PROFILE="guarded", **VARIABLES) == guarded
    user.ok("use", "guarded")
    assert user.proved(**VARIABLES) == guarded
    assert user.proved("--token-file", "/other") == {"g:1": ["/ca", "-", "/other"]}
    assert user.proved("--bootstrap", "x:1") == {"x:1": NOTHING}
    by_variables = user.proved(MILLRACE_BOOTSTRAP="v:1", **VARIABLES)
    assert by_variables == {"v:1": OF_VARIABLES}


def test_what_is_for_one_cluster_goes_to_no_other_one(user: User) -> None:
    user.ok("set", "guarded", "--bootstrap", "g:1", "--tls-ca-file", "/ca", "--token-file", "/t")
    user.ok("set", "plain", "--bootstrap", "p:1")
    guarded, plain = ["/ca", "-", "/t"], NOTHING
    there = user.proved("--profile", "guarded", "--to-profile", "plain", **VARIABLES)
    assert there == {"g:1": guarded, "p:1": plain}
    back = user.proved("--profile", "plain", "--to-profile", "guarded", **VARIABLES)
    assert back == {"p:1": plain, "g:1": guarded}
    other = user.proved("--bootstrap", "x:1", "--to-bootstrap", "y:1", **VARIABLES)
    assert other == {"x:1": OF_VARIABLES, "y:1": NOTHING}
    to = ("--to-bootstrap", "y:1", "--to-tls-ca-file", "/to-ca", "--to-token-file", "/to-t")
    assert user.proved("--profile", "guarded", *to) == {
        "g:1": guarded,
        "y:1": ["/to-ca", "-", "/to-t"],
    }
    over = user.proved("--profile", "plain", "--to-profile", "guarded", "--to-token-file", "/w")
    assert over == {"p:1": plain, "g:1": ["/ca", "-", "/w"]}


def test_where_others_say_which_clusters_are_shown_no_profile_s_credentials_go_there(
    user: User,
) -> None:
    user.ok("set", "guarded", "--bootstrap", "g:1", "--tls-ca-file", "/ca", "--token-file", "/t")
    user.ok("use", "guarded")
    assert user.proved("--kubernetes") == {"127.0.0.1:7092": NOTHING}
    assert user.proved("--kubernetes", "--profile", "guarded") == {"127.0.0.1:7092": NOTHING}


def test_in_one_cluster_who_writes_may_be_somebody_else(user: User) -> None:
    assert user.proved("--bootstrap", "x:1", "--to-token-file", "/w", **VARIABLES) == {
        "x:1": ["variable-ca", "variable-key", "/w"]
    }


def test_a_profile_that_is_not_there_is_answered_with_the_nearest(user: User) -> None:
    user.ok("set", "staging", "--bootstrap", "a:1")
    for refused in (user.asks("--profile", "stagin"), user.run("use", "stagin")):
        assert refused.exit_code == ExitCode.USAGE
        assert "did you mean 'staging'?" in refused.stderr
    assert user.run("delete", "other").exit_code == ExitCode.USAGE
    told = user.asks("--output", "json", "--profile", "stagin").stderr
    assert json.loads(told)["exit_code"] == ExitCode.USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("set", "a b", "--bootstrap", "a:1"),
        ("set", "a", "--bootstrap", "http://a:1"),
        ("set", "a", "--bootstrap", "a:x"),
        ("set", "a"),
        ("use",),
        ("use", "a", "--none"),
    ],
)
def test_what_is_no_profile_is_not_written(user: User, words: tuple[str, ...]) -> None:
    assert user.run(*words).exit_code == ExitCode.USAGE
    assert not user.file.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profiles = 1", "write [profiles.NAME]"),
        ("[profiles.a]\nbootstrp = 'a:1'", "did you mean 'bootstrap'?"),
        ("[profiles.a]", "[profiles.a]: bootstrap: is required"),
        ("[profiles.a]\nbootstrap = 'a:x'", "[profiles.a]: "),
        ("[profiles]\na = 'a:1'", "profiles.a: is a section"),
        ("[profiles.'a b']\nbootstrap = 'a:1'", "'a b' is no name"),
        ("current = 'a'", "there is no such profile"),
        ("currant = 'a'", "currant: unknown"),
        ("=", "is not TOML"),
        ("a = " + "[" * 10_000, "is not TOML"),
    ],
)
def test_a_file_with_something_wrong_in_it_is_refused_by_its_name(
    user: User, text: str, problem: str
) -> None:
    user.write(text)
    refused = user.asks()
    assert refused.exit_code == ExitCode.FAILED
    assert problem in refused.stderr
    assert str(user.file) in refused.stderr
    assert user.asked("--bootstrap", "a:1")[0] == "a:1"  # It is not needed then.


def test_a_relative_folder_of_configuration_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    environment = {"XDG_CONFIG_HOME": "relative", "HOME": str(tmp_path)}
    result = CliRunner(env=environment).invoke(cli, ["profile", "set", "a", "--bootstrap", "a:1"])
    assert result.exit_code == ExitCode.DONE
    assert (tmp_path / ".config" / "millrace" / "config.toml").exists()


def test_the_shell_completes_profiles(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.ok("set", "staging", "--bootstrap", "a:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(user.file.parents[1]))
    completion = ShellComplete(cli, {}, "millrace", "_MILLRACE_COMPLETE")
    for words in (["topic", "list", "--profile"], ["profile", "use"], ["copy", "--to-profile"]):
        assert [item.value for item in completion.get_completions(words, "st")] == ["staging"]
