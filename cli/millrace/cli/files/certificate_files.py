"""Certificates and their keys in a folder, as `millrace certificate` and `millrace up --tls` do it.

`NAME.crt` is readable by all, and `NAME.key` by its owner alone. The authority's name is `ca`.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.cli.files.token_store import OWNER_ALONE
from millrace.cli.files.whole_file import WholeFile

if TYPE_CHECKING:
    from millrace.runtime.certificates import Issued

AUTHORITY: Final = "ca"
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
_FOR_ALL: Final = 0o644
_FOLDER_OWNER_ALONE: Final = 0o700


def paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Return where a certificate and its key are."""
    return folder / f"{name}.crt", folder / f"{name}.key"


def load(folder: Path, name: str) -> "Issued":
    """Read a certificate and its key.

    Raises:
        OSError: one cannot be read.
    """
    from millrace.runtime.certificates import Issued

    certificate, key = paths(folder, name)
    return Issued(certificate.read_bytes(), key.read_bytes())


def store(folder: Path, name: str, made: "Issued") -> None:
    """Write a certificate and its key, each as a whole, in the place of what is there."""
    folder.mkdir(mode=_FOLDER_OWNER_ALONE, parents=True, exist_ok=True)
    certificate, key = paths(folder, name)
    for path, content, mode in (
        (key, made.key, OWNER_ALONE),
        (certificate, made.certificate, _FOR_ALL),
    ):
        with WholeFile(str(path)) as file:
            os.fchmod(file.stream.fileno(), mode)
            file.stream.write(content)
            file.finish()
