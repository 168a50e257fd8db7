"""Reports the positions of queries to the brokers, in a thread of its own: no query waits for that.

Only the newest positions of each name are kept for sending, so that memory is bounded and late
reports are not outdated. Names take turns, so that one that fails does not delay the others for
long; reports that brokers refuse for good are dropped. Positions are for people and for tools that
show lag: a query always continues from its checkpoint.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from millrace.client import MillraceError, Position, SyncAdmin
from millrace.core.topics import PartitionName
from millrace.spark import events
from millrace.spark.cluster.lookups import CLIENT_ID
from millrace.spark.cluster.offsets import LogPosition
from millrace.spark.options.option import NO_CREDENTIALS, CredentialFiles

_PAUSE_S: Final = 5.0
"""Pause after a failure."""
_TIMEOUT_MS: Final = 10_000

_log = logging.getLogger(__name__)


class PositionReporter:
    """Sends the newest positions of any number of names."""

    def __init__(
        self, bootstrap_servers: str, credentials: CredentialFiles = NO_CREDENTIALS
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._credentials = credentials
        self._changed = threading.Condition()
        self._waiting: dict[str, Mapping[PartitionName, LogPosition]] = {}
        self._is_closed = False
        self._failing: set[str] = set()
        self.failures = 0
        """Reports that failed: tried again with the newest positions, or refused for good."""
        self._thread = threading.Thread(target=self._run, name="millrace-positions", daemon=True)
        self._thread.start()

    def report(self, name: str, positions: Mapping[PartitionName, LogPosition]) -> None:
        """Send these positions, soon. Returns at once."""
        if positions:
            with self._changed:
                self._waiting[name] = positions
                self._changed.notify()

    def close(self) -> None:
        """Send the remaining reports, if brokers take them at once, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with SyncAdmin(
            self._bootstrap_servers,
            client_id=CLIENT_ID,
            request_timeout_ms=_TIMEOUT_MS,
            **self._credentials._asdict(),
        ) as admin:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_closed)
                    if not self._waiting:
                        return
                    name = next(iter(self._waiting))
                    positions = self._waiting.pop(name)
                try:
                    admin.commit_positions(
                        name,
                        {
                            place: Position(position.offset, position.leader_epoch)
                            for place, position in positions.items()
                        },
                    )
                    self._failing.discard(name)
                except MillraceError as error:
                    self._on_failure(name, positions, error)

    def _on_failure(
        self, name: str, positions: Mapping[PartitionName, LogPosition], error: MillraceError
    ) -> None:
        if name not in self._failing:  # Once, and not every few seconds.
            events.POSITION_UNREPORTED.log(_log, query=name, error=str(error))
        self._failing.add(name)
        self.failures += 1
        if not error.retriable:
            return
        with self._changed:
            if not self._is_closed:
                self._waiting.setdefault(name, positions)
                self._changed.wait_for(lambda: self._is_closed, _PAUSE_S)
