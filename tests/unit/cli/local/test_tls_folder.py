"""The folder of `millrace up --tls`: what it has, what is made anew, and what stays."""

import time
from pathlib import Path

import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.files import certificate_files
from millrace.cli.local.tls_folder import TlsFolder
from millrace.runtime.certificates import Certificate, Names, each_of, issue, new_authority, read

BROKERS = ["broker-0", "broker-1"]
URI = "spiffe://millrace/ns/default/cluster/millrace/broker/{}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TlsFolder(tmp_path / "tls", BROKERS, "127.0.0.1")
    return tmp_path / "tls"


def again(folder: Path, host: str = "127.0.0.1") -> TlsFolder:
    return TlsFolder(folder, BROKERS, host)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def certificate(folder: Path, name: str) -> Certificate:
    return read((folder / f"{name}.crt").read_bytes())


def replace(folder: Path, name: str, *, days: float, uri: str = "", hosts: str = "") -> None:
    """Give a broker a certificate that the folder's authority signs."""
    given = hosts.split() if hosts else sorted(certificate(folder, name).hosts)
    names = Names(common=name, hosts=given, uri=uri or URI.format(name))
    authority = certificate_files.load(folder, "ca")
    certificate_files.store(folder, name, issue(authority, names, days=days))


def days_left(found: Certificate) -> float:
    return (found.ends - time.time()) / 86_400


def test_each_broker_gets_a_certificate_for_this_machine(folder: Path) -> None:
    for name in BROKERS:
        found = certificate(folder, name)
        assert found.uris == (URI.format(name),)
        assert found.hosts >= {"localhost", "127.0.0.1", "::1"}
        assert found.is_of((folder / "ca.crt").read_bytes())
    keys = [path for path in folder.iterdir() if path.suffix == ".key"]
    assert len(keys) == 3
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_there_and_good_stays(folder: Path) -> None:
    before = contents(folder)
    again(folder)
    assert contents(folder) == before


def test_a_broker_that_comes_later_gets_one_of_the_same_authority(folder: Path) -> None:
    before = contents(folder)
    TlsFolder(folder, [*BROKERS, "broker-2"], "127.0.0.1")
    after = contents(folder)
    assert after.keys() - before.keys() == {"broker-2.crt", "broker-2.key"}
    assert before.items() <= after.items()


def test_an_address_that_is_served_is_in_the_certificate(folder: Path) -> None:
    again(folder, "10.0.0.5")
    assert "10.0.0.5" in certificate(folder, "broker-0").hosts
    again(folder, "0.0.0.0")
    assert "0.0.0.0" not in certificate(folder, "broker-0").hosts


@pytest.mark.parametrize("damage", ["ends soon", "other name", "other host", "other key", "gone"])
def test_a_certificate_that_does_not_do_any_more_is_made_anew(folder: Path, damage: str) -> None:
    if damage == "ends soon":
        replace(folder, "broker-0", days=29)
    elif damage == "other name":
        replace(folder, "broker-0", days=300, uri=URI.format("broker-1"))
    elif damage == "other host":
        replace(folder, "broker-0", days=300, hosts="elsewhere")
    elif damage == "other key":
        (folder / "broker-0.key").write_bytes((folder / "broker-1.key").read_bytes())
    else:
        (folder / "broker-0.crt").unlink()
    before = contents(folder)
    again(folder)
    found = certificate(folder, "broker-0")
    assert days_left(found) > 300
    assert found.uris == (URI.format("broker-0"),)
    assert contents(folder)["broker-0.crt"] != before.get("broker-0.crt")
    assert contents(folder)["broker-1.crt"] == before["broker-1.crt"]


def test_the_authority_is_made_anew_while_the_one_before_is_still_trusted(folder: Path) -> None:
    certificate_files.store(folder, "ca", new_authority("ends", days=80))
    old = (folder / "ca.crt").read_bytes()
    replace(folder, "broker-0", days=79)
    replace(folder, "broker-1", days=29)
    again(folder)
    trusted = each_of((folder / "ca.crt").read_bytes())
    assert trusted[1:] == each_of(old)
    assert days_left(read(trusted[0])) > 3000
    assert certificate(folder, "broker-0").is_of(old), "it is good for a while"
    assert certificate(folder, "broker-1").is_of(trusted[0])
    assert days_left(certificate(folder, "broker-1")) > 300
    before = contents(folder)
    again(folder)
    assert contents(folder) == before


def test_an_authority_that_has_ended_is_trusted_no_more(folder: Path) -> None:
    certificate_files.store(folder, "ca", new_authority("ended", days=-1))
    again(folder)
    assert len(each_of((folder / "ca.crt").read_bytes())) == 1
    assert certificate(folder, "broker-0").is_of((folder / "ca.crt").read_bytes())


def test_a_folder_without_the_key_of_its_authority_is_used_as_it_is(folder: Path) -> None:
    replace(folder, "broker-0", days=1, hosts="broker.example.org")
    (folder / "ca.key").unlink()
    before = contents(folder)
    again(folder)
    assert contents(folder) == before
    (folder / "broker-1.crt").unlink()
    with pytest.raises(Failure, match=r"has no certificate of broker-1, and no ca\.key"):
        again(folder)


def test_what_ends_soon_is_renewed_while_brokers_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.cli.local.tls_folder._LOOK_S", 0.01)
    with again(folder).looked_after():
        replace(folder, "broker-0", days=29)
        deadline = time.monotonic() + 20
        while days_left(certificate(folder, "broker-0")) < 300:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_hour_in_which_nothing_can_be_renewed_is_told_and_the_next_one_tries_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("millrace.cli.local.tls_folder._LOOK_S", 0.01)
    kept = again(folder)
    (folder / "ca.crt").write_bytes(b"nonsense")
    with kept.looked_after():
        time.sleep(0.2)
    assert "are not renewed" in capsys.readouterr().err
