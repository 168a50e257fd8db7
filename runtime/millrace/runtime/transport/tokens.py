"""The token of a client: it goes with each call, where nobody else can read it.

It is given, or comes from a file, which is looked at once a second at the most, and read again
when it has changed: a token is renewed by writing another one. A file that has none any more, as in
the middle of a write, leaves the last one in use: brokers decide whether it still counts. A call
whose token cannot be sent fails before anything is sent, and so does one with a token that
Kubernetes has made for somebody else (G1).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.core.addresses import host_of, is_loopback
from millrace.core.errors import AuthenticationFailedError, InvalidConfigError
from millrace.core.guard.service_account_token import sending_problem
from millrace.core.guard.token_file import TOKEN_CHARACTERS_MAX, token_problem
from millrace.runtime import host
from millrace.runtime.file_stamp import FileStamp, file_stamp
from millrace.runtime.transport.calls import CallError, Status

_LOOK_SECONDS: Final = 1.0
_KEY: Final = "authorization"


class Token:
    """One token, which stays the same.

    Args:
        token: of the client.
        name: what people call it by; never the token.

    Attributes:
        name: as given; of a file, its path.

    Raises:
        InvalidConfigError: it is none that may be sent.
    """

    def __init__(self, token: str, name: str = "this client") -> None:
        self._token, self.name = token, name
        if problem := token_problem(token) or sending_problem(token):
            raise InvalidConfigError(f"token: {problem}")

    def metadata(self, address: str, *, is_private: bool) -> tuple[tuple[str, str], ...]:
        """Return what names the caller in a call.

        Args:
            address: `host:port` that is called.
            is_private: whether nobody else reads what is sent.

        Raises:
            CallError: there is no token, or it may not be sent there; says what to do.
        """
        if not is_private and not is_loopback(host_of(address)):
            raise _refused(
                f"the token of {self.name} is not sent to {address} in plain text, where others "
                "could read it: set tls_ca_file, so that the connection is encrypted"
            )
        return ((_KEY, f"Bearer {self._current()}"),)

    def _current(self) -> str:
        """Return the token to send now.

        Raises:
            CallError: there is none.
        """
        return self._token


class TokenFile(Token):
    """One token, as its file has it now. It belongs to one loop.

    Args:
        path: of the file, which has the token alone.
        on_problem: called with each reason why a file that has changed is not used, at the second
            look that finds it.
    """

    def __init__(self, path: str, on_problem: Callable[[str], object]) -> None:
        self._path = Path(path)
        self.name = path
        self._on_problem = on_problem
        self._problem = ""  # Of the last look.
        self._is_told = False
        self._stamp: FileStamp | None = None
        self._token = ""  # Empty: the file had none so far.
        self._look_at = 0.0

    def _current(self) -> str:
        now = host.monotonic_s()
        if now < self._look_at:
            return self._token
        try:
            stamp = file_stamp(self._path)
            if stamp != self._stamp:
                self._token = self._read()
                self._stamp = stamp
            self._problem = ""
        except (OSError, ValueError) as error:
            problem = f"token_file, {self._path}: {error}"
            if not self._token:
                raise _refused(problem) from error
            self._note(problem)
        self._look_at = now + _LOOK_SECONDS
        return self._token

    def _note(self, problem: str) -> None:
        # Not at once: a file that is written in place is empty for a moment.
        if problem != self._problem:
            self._problem, self._is_told = problem, False
        elif not self._is_told:
            self._is_told = True
            self._on_problem(problem)

    def _read(self) -> str:
        """Return the token.

        Raises:
            ValueError: the file has none that may be sent.
        """
        token = read_token(self._path)
        if problem := sending_problem(token):
            raise ValueError(problem)
        return token


def read_token(path: Path) -> str:
    """Return the token of a file that has a token alone.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has no token.
    """
    with path.open("rb") as file:
        token = file.read(TOKEN_CHARACTERS_MAX + 100).decode("ascii", "replace").strip()
    if problem := token_problem(token):
        raise ValueError(f"{problem}, and the file has something else")
    return token


def _refused(problem: str) -> CallError:
    return CallError(Status.UNAUTHENTICATED, problem, AuthenticationFailedError(problem))
