"""Files with tokens, and with what recognises them."""

import stat
from pathlib import Path

from millrace.cli.files.token_store import add_token, read_tokens, write_privately


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_for_its_owner_alone_also_in_the_place_of_a_file_that_all_could_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "orders.token"
    path.write_text("an earlier one")
    path.chmod(0o644)
    write_privately(path, "mlr_x\n")
    assert (path.read_text(), mode_of(path)) == ("mlr_x\n", 0o600)


def test_the_file_of_brokers_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, "alice")
    assert mode_of(path) == 0o600
    path.chmod(0o640)
    add_token(path, "bob")
    assert mode_of(path) == 0o640
    assert [entry.principal for entry in read_tokens(path)] == ["alice", "bob"]


def test_all_tokens_of_a_principal_have_one_salt(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for name in ("alice", "bob", "alice"):
        add_token(path, name)
    salts = [{verifier.salt for verifier in entry.scram} for entry in read_tokens(path)]
    assert [*map(len, salts)] == [1, 1, 1]
    assert salts[0] == salts[2]
    assert salts[0] != salts[1]
