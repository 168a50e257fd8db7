"""Which brokers are alive, as far as the controller can tell: one session for each broker's life.

A session lasts as long as heartbeats come. It ends when none has come for the time-out, or when the
broker's connection broke and the same life did not come back within the grace: connections break by
themselves, and that alone must not move leaderships. What is done about an ended session, is the
controller's (P29).

A new controller has heard of nobody. It expects every broker that was alive for its predecessor,
and gives each a whole session before it says otherwise: a change of the controller is no reason for
elections. Only the predecessor's own broker is about to stop, has crashed, or has been silent for
long already: it gets but the time to find the new controller (`Deposed`). Such a session is not
confirmed: it does not prove that the process lives (P28).

A controller that was paused itself has heard of nobody either, and that is its own fault: after a
gap in its ticks every session begins anew.

Source: KIP-631 for sessions and fencing.
"""

from dataclasses import dataclass

from millrace.core.ids import BrokerId, MonotonicMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife


@dataclass(slots=True)
class _Session:
    life: BrokerLife
    ends_at: MonotonicMs
    is_confirmed: bool
    metadata_epoch: int  # Of the image that the broker has applied; -1 while it has not said.


class Sessions:
    """See the module. Bounded by the number of brokers."""

    def __init__(self, config: ClusterConfig) -> None:
        self._timeout_ms = config.broker_session_timeout_ms
        self._grace_ms = config.broker_reconnect_grace_ms
        self._sessions: dict[BrokerId, _Session] = {}
        self._ticked_at: MonotonicMs | None = None

    def expect(self, life: BrokerLife, now: MonotonicMs, until: MonotonicMs | None = None) -> None:
        """Begin the session of a broker that was alive for the controller before.

        Args:
            until: when that of one ends which is most likely gone; None for the others.
        """
        if life.broker_id not in self._sessions:
            longest = MonotonicMs(now + self._timeout_ms)
            self._sessions[life.broker_id] = _Session(
                life,
                longest if until is None else min(until, longest),
                is_confirmed=False,
                metadata_epoch=-1,
            )

    def on_heartbeat(self, life: BrokerLife, metadata_epoch: int, now: MonotonicMs) -> None:
        """A registered life was heard of: its session goes on, or begins."""
        self._sessions[life.broker_id] = _Session(
            life,
            MonotonicMs(now + self._timeout_ms),
            is_confirmed=True,
            metadata_epoch=metadata_epoch,
        )

    def on_connection_broken(self, life: BrokerLife, now: MonotonicMs) -> None:
        """A broker's connection broke, and it has no other one. The next heartbeat mends it."""
        session = self._sessions.get(life.broker_id)
        if session is not None and session.life == life:
            session.ends_at = min(session.ends_at, MonotonicMs(now + self._grace_ms))

    def end(self, broker_id: BrokerId) -> None:
        """Forget a session: another life takes the broker's place."""
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: BrokerId) -> bool:
        """Whether a process was heard of, and may still be there."""
        session = self._sessions.get(broker_id)
        return session is not None and session.is_confirmed

    def is_expected(self, broker_id: BrokerId) -> bool:
        """Whether a process may be there, though this controller has not heard of it."""
        session = self._sessions.get(broker_id)
        return session is not None and not session.is_confirmed

    def metadata_epoch(self, broker_id: BrokerId) -> int:
        """Return the epoch of the image that a broker has applied; -1 when that is not known."""
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_epoch

    def next_end(self) -> MonotonicMs | None:
        """Return when the first session ends of which nothing is heard; None: there is none."""
        return min((each.ends_at for each in self._sessions.values()), default=None)

    def ended(self, now: MonotonicMs) -> list[BrokerLife]:
        """Remove and return the lives whose session is over. To be called with every tick."""
        since = now if self._ticked_at is None else self._ticked_at
        self._ticked_at = now
        if now - since > self._timeout_ms // 2:
            for session in self._sessions.values():
                session.ends_at = MonotonicMs(now + self._timeout_ms)
        over = [each for each in self._sessions.values() if each.ends_at <= now]
        for each in over:
            del self._sessions[each.life.broker_id]
        return [each.life for each in over]
