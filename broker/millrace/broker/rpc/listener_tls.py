"""The certificates of a listener: they follow their files, and it is shown how long they count.

An expired certificate keeps no broker from starting: what it has is still needed, and a new
certificate counts at once when it is in the file.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from millrace.broker import events
from millrace.broker.peer_connection import OwnName, files_of
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_names import BrokerName
from millrace.core.errors import InvalidConfigError
from millrace.core.events import Event
from millrace.core.listeners_config import ListenerEntry
from millrace.core.metadata.model import Listener
from millrace.runtime import host
from millrace.runtime.certificates import lifetime_of
from millrace.runtime.transport.credentials import LOOK_SECONDS, ServerCredentials

_log = logging.getLogger(__name__)

_SOON_SECONDS: Final = 7 * 86_400
_SOON_SHARE: Final = 0.1
"""A certificate that has less than both left, of its lifetime, ends soon: it is logged."""
_LOG_SECONDS: Final = 6 * 3600
"""Pause between two such lines."""


class ListenerTls:
    """The certificates of a listener of gRPC, and of its twin.

    Args:
        entry: of the listener.
        node_name: of this broker.
        metrics: show how long they count.

    Attributes:
        credentials: for its connections.

    Raises:
        InvalidConfigError: the files cannot be used.
    """

    def __init__(self, entry: ListenerEntry, node_name: str, metrics: BrokerMetrics) -> None:
        self._name = entry.name
        self._own = OwnName(node_name) if entry.side is Listener.BROKERS else None
        self._told: Event | None = None  # What was logged last of the present certificate.
        self._told_at_s = 0.0
        try:
            self.credentials = ServerCredentials(
                files_of(entry.config),
                self._on_problem,
                self._check,
            )
            self._lifetime = lifetime_of(self.credentials.certificate)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listeners.{entry.name}: {error.message}") from error
        metrics.certificate_seconds.labels(entry.name).set_function(lambda: self.seconds_left)
        metrics.certificate_lifetime_seconds.labels(entry.name).set_function(
            lambda: self._lifetime.seconds
        )
        self._tell_end()

    def _check(self, certificate: bytes) -> None:
        if self._own is not None:
            self._own.check(certificate)

    @property
    def name(self) -> BrokerName | None:
        """The name by which its certificates are known to other brokers; None: clients ask."""
        return None if self._own is None else self._own.value

    @property
    def seconds_left(self) -> float:
        """How long the certificate counts; below 0: since when it does not."""
        return self._lifetime.ends - host.current.wall_ns() / 1e9

    async def run(self) -> None:
        """Follow the files for as long as the broker runs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await asyncio.to_thread(self.credentials.look):
                self._lifetime = lifetime_of(self.credentials.certificate)
                self._told = None
                events.CERTIFICATE_RENEWED.log(
                    _log, listener=self._name, ends=_written(self._lifetime.ends)
                )
            self._tell_end()

    def _tell_end(self) -> None:
        left_s, now_s = self.seconds_left, host.monotonic_s()
        if left_s > min(_SOON_SECONDS, _SOON_SHARE * self._lifetime.seconds):
            return
        event = events.CERTIFICATE_EXPIRED if left_s <= 0 else events.CERTIFICATE_EXPIRES
        if event is not self._told or now_s - self._told_at_s >= _LOG_SECONDS:
            self._told, self._told_at_s = event, now_s
            event.log(_log, listener=self._name, ends=_written(self._lifetime.ends))

    def _on_problem(self, problem: str) -> None:
        events.CERTIFICATE_UNUSABLE.log(_log, listener=self._name, error=problem)


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
