"""The files of tokens and of rules: read at the start, and again when they change.

A file that cannot be read, or has a mistake, leaves what the last good one said; a broker that has
no last good one does not start.

A part of a file that is being written may have no mistake, and would refuse callers who do not try
again. So a change counts when two looks have found the same state of the file, and it is still the
same after the file is read. Rules that become none at all count as a mistake.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from millrace.broker import events
from millrace.broker.guard.file_guard import FileAuthenticator, FileGuard
from millrace.broker.guard.guard import Guard
from millrace.core.addresses import is_loopback
from millrace.core.broker_config import AccessConfig, BrokerConfig
from millrace.core.errors import InvalidConfigError
from millrace.core.guard.rules import RULES_BYTES_MAX, parse_rules
from millrace.core.guard.token_file import TOKENS_BYTES_MAX, parse_tokens
from millrace.core.metadata.model import Listener
from millrace.runtime.file_stamp import FileStamp, file_stamp

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_NO_RULES: Final = (
    "it has no rules any more, which would refuse every caller: write them again, or leave one "
    "rule to take all others back"
)

_ValueT = TypeVar("_ValueT")


class _FollowedFile(Generic[_ValueT]):
    """One file.

    Args:
        setting: names the file, in messages.
        path: of the file.
        bytes_max: of it.
        parse: returns what its text says; raises `InvalidConfigError`.
        show: takes 1 while the file has a mistake, else 0.
        emptied: the mistake of a file that says nothing any more; empty: that is none.

    Raises:
        InvalidConfigError: it cannot be read, or has a mistake.

    Attributes:
        value: what the last good one says.
    """

    def __init__(
        self,
        setting: str,
        path: str,
        bytes_max: int,
        parse: Callable[[str], _ValueT],
        show: Callable[[int], object],
        *,
        emptied: str = "",
    ) -> None:
        self._setting = setting
        self._path = Path(path)
        self._bytes_max = bytes_max
        self._parse = parse
        self._show = show
        self._emptied = emptied
        self._read_stamp = self._seen_stamp = self._look()
        self.value = self._read()
        show(0)

    def follow(self) -> bool:
        """Read the file again if it has changed; return whether something new counts."""
        before, stamp = self._seen_stamp, self._look()
        self._seen_stamp = stamp
        if stamp == self._read_stamp or stamp != before:
            return False
        value, error = self.value, ""
        try:
            value = self._read()
        except InvalidConfigError as refused:
            error = refused.message
        if self._look() != stamp:
            return False
        self._read_stamp = stamp
        if self._emptied and self.value and not value:
            error = self._said(self._emptied)
        if error:
            events.ACCESS_FILE_REFUSED.log(_log, file=str(self._path), error=error)
            self._show(1)
            return False
        self.value = value
        events.ACCESS_FILE_TAKEN.log(_log, file=str(self._path))
        self._show(0)
        return True

    def _look(self) -> FileStamp | None:
        """Return what differs when the file has changed; None: there is none."""
        try:
            return file_stamp(self._path)
        except OSError:
            return None

    def _read(self) -> _ValueT:
        try:
            with self._path.open("rb") as file:
                data = file.read(self._bytes_max + 1)
            if len(data) > self._bytes_max:
                raise ValueError(f"it has more than {self._bytes_max} bytes")
            return self._parse(data.decode("utf-8"))
        except (OSError, ValueError, InvalidConfigError) as error:
            raise InvalidConfigError(self._said(error)) from error

    def _said(self, error: object) -> str:
        return f"access.{self._setting}, {self._path}: {error}"


class AccessFiles:
    """Both files, and the guard that asks what they say.

    Args:
        config: names them; there are rules.
        show: takes the name of a file's setting, and 1 while that file has a mistake, else 0.

    Raises:
        InvalidConfigError: one cannot be read, or has a mistake.

    Attributes:
        guard: of the broker.
    """

    def __init__(self, config: AccessConfig, show: Callable[[str, int], object]) -> None:
        self._rules = _FollowedFile(
            "rules_file",
            config.rules_file,
            RULES_BYTES_MAX,
            parse_rules,
            lambda refused: show("rules_file", refused),
            emptied=_NO_RULES,
        )
        self._tokens = None
        self._authenticator = None
        if config.tokens_file:
            self._tokens = _FollowedFile(
                "tokens_file",
                config.tokens_file,
                TOKENS_BYTES_MAX,
                parse_tokens,
                lambda refused: show("tokens_file", refused),
            )
            self._authenticator = FileAuthenticator(self._tokens.value)
        self.guard = FileGuard(self._authenticator, self._rules.value)

    async def run(self) -> None:
        """Follow the files for as long as the broker runs."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take what has changed."""
        if await asyncio.to_thread(self._rules.follow):
            self.guard.on_authority(self._rules.value)
        if self._tokens is None or self._authenticator is None:
            return
        if await asyncio.to_thread(self._tokens.follow):
            self._authenticator.tokens = self._tokens.value


class OpenAccess(Protocol):
    """Who may do what, as long as `run` runs."""

    @property
    def guard(self) -> Guard:
        """The guard of the broker."""

    async def run(self) -> None:
        """Follow changes for as long as the broker runs."""


def open_access(config: BrokerConfig, show: Callable[[str, int], object]) -> OpenAccess | None:
    """Return who may do what; None: every caller may do everything.

    Args:
        config: of the broker.
        show: as for `AccessFiles`.

    Raises:
        InvalidConfigError: a file cannot be read, or has a mistake; or the API server cannot be
            asked.
    """
    if config.access.kubernetes:
        # Imported only with Kubernetes.
        from millrace.broker.guard.kubernetes_guard import KubernetesAccess

        by_api = KubernetesAccess(config.coordination.kubernetes, config.limits)
        by_api.guard.is_enforced = config.access.enforced
        return by_api
    if config.access.rules_file:
        by_files = AccessFiles(config.access, show)
        by_files.guard.is_enforced = config.access.enforced
        return by_files
    for entry in config.listeners.entries:
        if entry.side is not Listener.BROKERS and not is_loopback(entry.config.host):
            events.ACCESS_IS_OPEN.log(_log, address=entry.config.host)
            break
    return None
