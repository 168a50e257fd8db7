"""`millrace certificate`: what it writes, and what it does not touch."""

import json
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millrace.cli.console.failures import ExitCode
from millrace.cli.main import cli
from millrace.core.broker_names import BrokerName
from millrace.runtime.certificates import read


def certificate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["certificate", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pki"
    assert certificate("authority", str(made)).exit_code == 0
    return made


def test_keys_are_for_their_owner_alone(folder: Path) -> None:
    certificate("broker", str(folder), "b0", "--host", "localhost")
    for name in ("ca", "b0"):
        assert (folder / f"{name}.key").stat().st_mode & 0o777 == 0o600
        assert (folder / f"{name}.crt").stat().st_mode & 0o777 == 0o644


def test_what_is_made_is_accepted_by_a_strict_library_and_names_the_broker(folder: Path) -> None:
    done = certificate(
        *("broker", str(folder), "b0", "--host", "localhost", "--host", "10.0.0.5"),
        *("--namespace", "team", "--cluster", "orders", "--output", "json"),
    )
    files = json.loads(done.stdout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    (uri,) = read(Path(files["certificate"]).read_bytes()).uris
    assert BrokerName.parse(uri) == ("millrace", "team", "orders", "b0")


def test_nothing_is_overwritten(folder: Path) -> None:
    certificate("client", str(folder), "billing")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for arguments in (
        ("authority", str(folder)),
        ("client", str(folder), "billing"),
        ("broker", str(folder), "billing", "--host", "localhost"),
    ):
        done = certificate(*arguments)
        assert done.exit_code == ExitCode.FAILED
        assert "is there already, and is not overwritten" in done.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["ca", "../x", "a/b", ".x", "x" * 300, "a b"])
def test_a_name_that_cannot_be_in_a_certificate_or_a_file_is_refused(
    folder: Path, name: str
) -> None:
    done = certificate("broker", str(folder), name, "--host", "localhost")
    assert done.exit_code == ExitCode.USAGE
    assert {path.name for path in folder.iterdir()} == {"ca.crt", "ca.key"}


def test_without_an_authority_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = certificate("client", str(tmp_path), "billing")
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "make an authority first: `millrace certificate authority" in done.stderr
