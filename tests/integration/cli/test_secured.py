"""`millrace up --tls`: what clients need, several brokers, restarts; profiles and copies."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from demo.up_process import ClusterProcess, UpProcess
from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine

from millrace.cli.console.failures import ExitCode
from millrace.cli.main import cli

NO_PROFILES = {"XDG_CONFIG_HOME": "/nonexistent"}


def run(*words: str, stdin: str = "", **environment: str) -> Result:
    return CliRunner(env=NO_PROFILES | environment).invoke(cli, words, input=stdin)


def ok(*words: str, stdin: str = "", **environment: str) -> str:
    result = run(*words, stdin=stdin, **environment)
    assert result.exit_code == 0, f"{words}: {result.output} {result.exception!r}"
    return result.stdout


def login(said: Mapping[str, Any], *, with_token: bool = True) -> dict[str, str]:
    """Return the variables that `millrace up` tells people to set."""
    found = {"MILLRACE_BOOTSTRAP": said["address"], "MILLRACE_TLS_CA_FILE": said["tls_ca_file"]}
    return found | ({"MILLRACE_TOKEN_FILE": said["token_file"]} if with_token else {})


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    folder = tmp_path / "secured"
    folder.mkdir()
    process = UpProcess(folder)
    yield process
    process.abandon()


def test_it_speaks_tls_alone_with_the_same_authority_after_a_restart(
    up: UpProcess, tmp_path: Path
) -> None:
    said = up.run("--port", "0", "--tls")
    assert said["tls_ca_file"] == str(up.data_dir / "tls" / "ca.crt")
    assert said["token_file"] is None
    environment = login(said, with_token=False)
    ok("topic", "create", "orders", **environment)
    ok("produce", "orders", stdin="one\n", **environment)
    plain = run("topic", "list", MILLRACE_BOOTSTRAP=said["address"])
    assert plain.exit_code == ExitCode.UNREACHABLE
    assert "it speaks TLS, and this client does not" in plain.stderr
    assert "--tls-ca-file" in plain.stderr
    beside = ["--port", "0", "--data-dir", str(up.data_dir)]
    second = subprocess.run(
        [
            *(sys.executable, "-m", "millrace.cli", "up", *beside, "--metrics-port", "-1"),
            *("--access", str(tmp_path / "access"), "--tls"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    advice = f"`millrace up --port 0 --data-dir {up.data_dir}-2 --tls --access {tmp_path}/access`"
    assert advice in second.stderr, "it does not let anybody in"
    assert up.stop() == 0
    again = up.run("--port", said["address"].rpartition(":")[2], "--tls")
    assert again["tls_ca_file"] == said["tls_ca_file"]
    assert ok("consume", "orders", **environment) == "one\n"


def test_the_folder_may_be_another_one_and_the_greeting_says_what_clients_set(
    tmp_path: Path,
) -> None:
    place = ["--data-dir", str(tmp_path / "data"), "--tls", str(tmp_path / "my tls")]
    words = ["up", *place, "--port", "0", "--metrics-port", "-1"]
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        while "create greetings" not in said:
            said += process.stdout.readline()
        process.terminate()
        process.wait(60)
    assert f"export MILLRACE_TLS_CA_FILE='{tmp_path}/my tls/ca.crt'" in said


def test_three_brokers_know_each_other_by_certificates_and_callers_by_tokens(
    tmp_path: Path,
) -> None:
    process = ClusterProcess(tmp_path)
    try:
        access = ["--access", str(tmp_path / "access")]
        said = process.run("--brokers", "3", "--port", "0", "--tls", *access)
        address = ",".join(broker["address"] for broker in said["brokers"])
        environment = login({**said, "address": address})
        ok("topic", "create", "orders", "--replication-factor", "3", **environment)
        ok("produce", "orders", stdin="one\n", **environment)
        from_first = ("--from", "beginning", "--max", "1")
        ok("consume", "orders", "--group", "g", *from_first, **environment)
        # There are topics of the cluster itself now; both commands are about all topics.
        ok("transaction", "hanging", **environment)
        health = json.loads(ok("cluster", "health", "--output", "json", **environment))
        assert health["healthy"], health
        without = run("topic", "list", **login({**said, "address": address}, with_token=False))
        assert "(AUTHENTICATION_FAILED)" in without.stderr
        for number in range(3):
            text = (tmp_path / "data" / f"broker-{number}.toml").read_text()
            assert "replicas.tls_client_ca_file" in text
    finally:
        process.abandon()


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        ((), "in plain text and to do everything"),
        (("--tls",), "to do everything"),
        (("--access", "a"), "in plain text"),
    ],
)
def test_other_machines_are_let_in_with_tls_and_rules_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], lacking: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("up", "--host", "0.0.0.0", "--port", "0", *words)
    assert refused.exit_code == ExitCode.USAGE
    assert f"other machines would reach 0.0.0.0, {lacking}\n" in refused.stderr
    assert "`millrace up --host 0.0.0.0 --tls --access access`" in refused.stderr
    assert "--insecure" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_insecure", [False, True])
def test_other_machines_reach_a_host_that_is_guarded_or_said_to_be_insecure(
    up: UpProcess, tmp_path: Path, is_insecure: bool
) -> None:
    guarded = ["--tls", "--access", str(tmp_path / "access")]
    said = up.run("--port", "0", "--host", "0.0.0.0", *(["--insecure"] if is_insecure else guarded))
    port = said["address"].rpartition(":")[2]
    environment = {"MILLRACE_BOOTSTRAP": f"127.0.0.1:{port}"}
    if not is_insecure:
        environment = login(said) | environment
    ok("topic", "create", "orders", **environment)


def test_a_broker_that_others_reach_in_plain_text_does_not_start_unless_that_is_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        f'log_dirs = ["{tmp_path}/log"]\n[coordination]\npath = "{tmp_path}/metadata.sqlite"\n'
        '[listeners.clients]\nhost = "0.0.0.0"\n'
    )
    refused = run("broker", "--config", str(path))
    assert refused.exit_code == ExitCode.FAILED
    assert "other machines reach it, in plain text" in refused.stderr
    for advice in ("`millrace certificate`", "`millrace token`", "--insecure"):
        assert advice in refused.stderr
    ok("broker", "--config", str(path), "--check", "--insecure")


def test_a_topic_is_copied_between_a_cluster_with_tls_and_one_without_by_profiles(
    up: UpProcess, tmp_path: Path, own_broker: BrokerProcess
) -> None:
    said = up.run("--port", "0", "--tls", "--access", str(tmp_path / "access"))
    folder = {"XDG_CONFIG_HOME": str(tmp_path / "config")}

    def by_profile(*words: str, stdin: str = "") -> str:
        # Variables of another cluster change nothing.
        others = {"MILLRACE_TOKEN_FILE": "/nonexistent", "MILLRACE_TLS_CA_FILE": "/nonexistent"}
        return ok(*words, stdin=stdin, **folder, **others)

    by_profile("profile", "set", "plain", "--bootstrap", own_broker.address)
    files = ["--tls-ca-file", said["tls_ca_file"], "--token-file", said["token_file"]]
    by_profile("profile", "set", "guarded", "--bootstrap", said["address"], *files)
    by_profile("topic", "create", "orders", "--profile", "guarded")
    by_profile("produce", "orders", "--profile", "guarded", stdin="one\ntwo\n")
    there = ["copy", "orders", "orders", "--profile", "guarded", "--to-profile", "plain"]
    by_profile(*there, "--create")
    assert by_profile("consume", "orders", "--profile", "plain") == "one\ntwo\n"
    back = ["copy", "orders", "again", "--profile", "plain", "--to-profile", "guarded"]
    by_profile(*back, "--create")
    assert by_profile("consume", "again", "--profile", "guarded") == "one\ntwo\n"
    other = ["copy", "orders", "third", "--profile", "plain", "--to-bootstrap", said["address"]]
    refused = run(*other, "--create", **folder)
    assert "it speaks TLS, and this client does not" in refused.stderr
    to = ["--to-tls-ca-file", said["tls_ca_file"], "--to-token-file", said["token_file"]]
    by_profile(*other, *to, "--create")


def test_the_web_page_beside_brokers_with_tls_reaches_them(up: UpProcess) -> None:
    from urllib.request import urlopen

    said = up.run("--port", "0", "--tls")
    with urlopen(said["web_address"], timeout=60) as page:
        assert "broker-0" in page.read().decode()


def test_a_broker_in_plain_text_is_reached_although_a_variable_names_authorities(
    millrace: CommandLine,
) -> None:
    variables = {"MILLRACE_BOOTSTRAP": millrace.address, "MILLRACE_TLS_CA_FILE": "/nonexistent"}
    ok("topic", "list", "--tls-ca-file", "none", **variables)
