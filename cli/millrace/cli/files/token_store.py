"""The file of tokens that brokers read: changed as a whole, readable by its owner alone."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.files.whole_file import WholeFile
from millrace.core.errors import InvalidConfigError
from millrace.core.guard.token_file import (
    SCRAM_SALT_BYTES,
    TokenEntry,
    new_entry,
    parse_tokens,
    tokens_to_text,
)
from millrace.core.ids import WallMs

OWNER_ALONE: Final = 0o600
_PREFIX: Final = "mlr_"
"""Tokens are found by it where they should not be, such as in a repository."""
_RANDOM_BYTES: Final = 32


def read_tokens(path: Path) -> list[TokenEntry]:
    """Return the tokens of a file.

    Raises:
        Failure: there is no such file, or it has a mistake.
    """
    try:
        return list(parse_tokens(path.read_text(encoding="utf-8")).entries)
    except FileNotFoundError as error:
        raise Failure(
            f"there is no file {path}",
            "name it with --file; `millrace token new NAME` makes one",
            exit_code=ExitCode.NOT_FOUND,
        ) from error
    except (InvalidConfigError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error


@contextmanager
def changing(path: Path) -> Iterator[list[TokenEntry]]:
    """Provide the tokens of a file, and write what has become of them; one process at a time.

    Raises:
        Failure: the file has a mistake: it stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = read_tokens(path) if path.exists() else []
        yield entries
        _write(path, tokens_to_text(entries))


def add_token(
    path: Path, name: str, groups: Sequence[str] = (), expires_in_ms: int | None = None
) -> tuple[str, TokenEntry]:
    """Make a token, and write its entry; return both."""
    token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    ends = None
    if expires_in_ms is not None:
        ends = WallMs(int(time.time() * 1000) + expires_in_ms)
    salt = secrets.token_bytes(SCRAM_SALT_BYTES)
    with changing(path) as entries:
        # All of a principal have one salt: see `token_file`.
        salt = next((other.scram[0].salt for other in entries if other.principal == name), salt)
        entry = new_entry(token, name, groups, ends, salt)
        entries.append(entry)
    return token, entry


def write_privately(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also in place of one that others could read."""
    if path.exists():
        path.chmod(OWNER_ALONE)
    _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file; one that was there keeps its mode, as brokers may run as somebody else."""
    with WholeFile(str(path)) as file:
        os.fchmod(file.stream.fileno(), OWNER_ALONE)
        file.stream.write(text.encode())
        file.finish()


def named(entries: Sequence[TokenEntry], name: str, token_id: str | None) -> list[TokenEntry]:
    """Return the tokens of a principal, or the one of them that has an id.

    Raises:
        Failure: there is none.
    """
    found = [
        entry for entry in entries if entry.principal == name and token_id in (None, entry.token_id)
    ]
    if not found:
        what = f"a token of {name!r}" if token_id is None else f"the token {token_id} of {name!r}"
        raise Failure(
            f"there is not {what}",
            "`millrace token list` shows all",
            exit_code=ExitCode.NOT_FOUND,
        )
    return found
