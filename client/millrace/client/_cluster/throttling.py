"""Tells, once, that brokers delay a client by a quota."""

import logging
from typing import Final

from millrace.core.ids import BrokerId

_log = logging.getLogger(__name__)

_NOTICED_MS: Final = 100
"""A shorter delay is no news: the client is just at its limit."""


class ThrottlingNotice:
    """See the module.

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
            _log.warning(
                "broker %s delays this %s by %s ms: it exceeds a quota, see `millrace quota list`. "
                "This is told once; `metrics()` has the sum",
                broker_id,
                self._client,
                throttle_ms,
            )
