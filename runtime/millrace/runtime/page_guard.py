"""What guards a page for Prometheus: TLS, and a token that each request has to show.

Prometheus sends it by `authorization.credentials_file`. The file is read again when it changes; one
that cannot be read leaves the last token that counted. Tokens are compared in constant time.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.core.addresses import is_loopback
from millrace.core.errors import InvalidConfigError
from millrace.runtime.file_stamp import FileStamp, file_stamp
from millrace.runtime.page_messages import Request
from millrace.runtime.transport.credentials import ServerCredentials, TlsFiles
from millrace.runtime.transport.tokens import read_token

_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PageFiles:
    """Where the credentials of a page are; an empty name: it has none.

    Attributes:
        certificate, key: for TLS.
        token: has the token that has to be shown.
    """

    certificate: str = ""
    key: str = ""
    token: str = ""


def _silent(_: str) -> None:
    pass


class PageGuard:
    """Guards one server of pages, on its thread.

    Args:
        files: where the credentials are.
        host: where the pages are: a token that others could read on its way goes with TLS.
        on_problem: called with each reason why files that have changed are not used.

    Attributes:
        credentials: for TLS; None: it is in plain text.

    Raises:
        InvalidConfigError: the files cannot be used.
    """

    def __init__(
        self, files: PageFiles, host: str, on_problem: Callable[[str], object] = _silent
    ) -> None:
        if files.token and not files.certificate and not is_loopback(host):
            raise InvalidConfigError(
                f"the token of {files.token} needs a certificate and its key, as others could read "
                f"it on its way to {host}"
            )
        self.credentials: ServerCredentials | None = None
        if files.certificate:
            tls = TlsFiles(certificate=files.certificate, key=files.key)
            self.credentials = ServerCredentials(tls, on_problem)
        self._file = Path(files.token) if files.token else None
        self._on_problem = on_problem
        self._problem = ""
        self._look_at = 0.0
        self._stamp: FileStamp | None = None
        self._digest = b""
        if self._file is not None:
            try:
                self._read(self._file)
            except (OSError, ValueError) as error:
                raise InvalidConfigError(f"{self._file}: {error}") from error

    def lets_in(self, request: Request) -> bool:
        """Return whether a request shows the token, if there is one."""
        if self._file is None:
            return True
        self._look(self._file)
        kind, _, token = request.fields.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(_digest(token), self._digest)

    def _look(self, file: Path) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        try:
            if file_stamp(file) != self._stamp:
                self._read(file)
        except (OSError, ValueError) as error:
            problem = f"{file}: {error}"
            if problem != self._problem:
                self._on_problem(problem)
            self._problem = problem
        else:
            self._problem = ""

    def _read(self, file: Path) -> None:
        """Take the token of the file.

        Raises:
            OSError: it cannot be read.
            ValueError: it has none.
        """
        stamp = file_stamp(file)
        self._digest, self._stamp = _digest(read_token(file)), stamp


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
