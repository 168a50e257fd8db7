"""Tells, once, that brokers delay a client by a quota."""

from typing import Final

from millrace.client import events
from millrace.client._threads.logs import Log
from millrace.core.ids import BrokerId

_log = Log(__name__)

_NOTICED_MS: Final = 100
"""A shorter delay is no news: the client is just at its limit."""


class ThrottlingNotice:
    """The notice of one client.

    Args:
        client: what is delayed, as `producer`.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._is_told = False

    def on_throttled(self, broker_id: BrokerId, throttle_ms: int) -> None:
        """A broker said so."""
        if not self._is_told and throttle_ms >= _NOTICED_MS:
            self._is_told = True
            events.CLIENT_DELAYED.log(
                _log, broker=broker_id, client=self._client, throttle_ms=throttle_ms
            )
