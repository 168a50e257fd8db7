"""The token of a client: read again when it changes, and sent only where nobody else reads it."""

import base64
import json
from pathlib import Path

import pytest

from millrace.core.errors import AuthenticationFailedError
from millrace.runtime.transport import tokens
from millrace.runtime.transport.calls import CallError, Status
from millrace.runtime.transport.tokens import TokenFile

FIRST, SECOND = "x" * 40, "y" * 40
LOCAL = "127.0.0.1:7092"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(FIRST + "\n")
    return path


@pytest.fixture
def told() -> list[str]:
    """The problems that files told of."""
    return []


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_LOOK_SECONDS", 0.0)


def file_at(path: Path, told: list[str] | None = None) -> TokenFile:
    problems: list[str] = [] if told is None else told
    return TokenFile(str(path), problems.append)


def sent_by(file: TokenFile) -> str:
    ((key, value),) = file.metadata(LOCAL, is_private=False)
    assert key == "authorization"
    return value.removeprefix("Bearer ")


def problem_of(file: TokenFile, address: str = LOCAL, *, is_private: bool = False) -> str:
    with pytest.raises(CallError) as refused:
        file.metadata(address, is_private=is_private)
    assert refused.value.status is Status.UNAUTHENTICATED
    assert isinstance(refused.value.refusal, AuthenticationFailedError)
    return refused.value.refusal.message


def test_a_call_has_the_token_as_a_bearer(path: Path) -> None:
    file = file_at(path)
    expected = (("authorization", f"Bearer {FIRST}"),)
    assert file.metadata(LOCAL, is_private=False) == expected
    assert file.metadata("[::1]:7092", is_private=False) == expected
    assert file.metadata("localhost:7092", is_private=False) == expected
    assert file.metadata("broker.example.org:7092", is_private=True) == expected


@pytest.mark.parametrize("host", ["10.0.0.1", "broker.example.org", "0.0.0.0", "[2001:db8::1]"])
def test_a_token_is_not_sent_where_others_could_read_it(path: Path, host: str) -> None:
    said = problem_of(file_at(path), f"{host}:7092")
    assert f"is not sent to {host}:7092 in plain text" in said
    assert "tls_ca_file" in said
    assert FIRST not in said


@pytest.mark.usefixtures("looks_at_once")
def test_another_token_is_taken_when_the_file_changes(path: Path) -> None:
    file = file_at(path)
    file.metadata(LOCAL, is_private=False)
    other = path.with_suffix(".new")
    other.write_text(SECOND)
    other.replace(path)
    assert file.metadata(LOCAL, is_private=False) == (("authorization", f"Bearer {SECOND}"),)


def test_the_file_is_looked_at_once_a_second(path: Path) -> None:
    file = file_at(path)
    file.metadata(LOCAL, is_private=False)
    path.unlink()
    assert file.metadata(LOCAL, is_private=False) == (("authorization", f"Bearer {FIRST}"),)


@pytest.mark.usefixtures("looks_at_once")
def test_a_file_that_is_empty_for_a_moment_leaves_its_token_in_use(
    path: Path, told: list[str]
) -> None:
    file = file_at(path, told)
    assert sent_by(file) == FIRST
    path.write_bytes(b"")
    assert sent_by(file) == FIRST
    assert not told
    path.write_text(SECOND)
    assert sent_by(file) == SECOND
    assert not told


@pytest.mark.usefixtures("looks_at_once")
def test_a_file_without_a_token_is_told_of_at_the_second_look_and_once(
    path: Path, told: list[str]
) -> None:
    file = file_at(path, told)
    file.metadata(LOCAL, is_private=False)
    path.unlink()
    for _ in range(4):
        assert sent_by(file) == FIRST
    (missing,) = told
    assert missing.startswith(f"token_file, {path}: ")
    path.write_text("short")
    for _ in range(4):
        assert sent_by(file) == FIRST
    (_, unfit) = told
    assert "a token is one word" in unfit
    path.write_text(FIRST)
    assert sent_by(file) == FIRST
    path.unlink()
    for _ in range(4):
        file.metadata(LOCAL, is_private=False)
    assert told == [missing, unfit, missing]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words and more text", b"\xff\xfe" * 20, b"x" * 20_000, b"short"]
)
def test_what_is_no_token_is_told_and_not_repeated(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    said = problem_of(file_at(path))
    assert said.startswith(f"token_file, {path}: a token is one word")
    assert "words" not in said


def test_a_file_that_is_away_is_told(tmp_path: Path) -> None:
    assert "No such file" in problem_of(file_at(tmp_path / "none"))
    assert "directory" in problem_of(file_at(tmp_path))


def test_a_pod_s_default_token_is_not_sent_and_nothing_of_it_is_told(path: Path) -> None:
    """G1: the receiver could act at the API server as the pod."""
    claims = {"aud": ["https://kubernetes.default.svc"], "sub": "system:serviceaccount:shop:reader"}
    parts = ({"alg": "RS256", "kid": "k1"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    token = ".".join(part.rstrip("=") for part in encoded) + ".c2lnbmF0dXJl"
    path.write_text(token)
    said = problem_of(file_at(path), is_private=True)
    assert "never sent" in said
    assert token not in said
