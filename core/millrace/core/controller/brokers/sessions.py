"""Which brokers are alive, as far as the controller can tell: one session for each broker's life.

A session lasts as long as heartbeats come. It ends when none has come for the time-out, or when the
broker's connection broke and the same life did not come back within the grace: a broken connection
alone must not move leaderships. The controller decides what follows from an ended session (P29).

A new controller has no heartbeats yet. It expects every broker that was alive for its predecessor,
and gives each a whole session: a change of the controller is no reason for elections. Only the
predecessor's own broker is about to stop, has crashed, or has been silent for long already: it gets
just the time to find the new controller (`Deposed`). An expected session is not confirmed: it does
not prove that the process lives (P28).

A controller that was paused itself has missed heartbeats through its own fault: after a gap in its
ticks every session begins again.

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
    """The sessions of all brokers, and no more than there are brokers."""

    def __init__(self, config: ClusterConfig) -> None:
        self._timeout_ms = config.broker_session_timeout_ms
        self._grace_ms = config.broker_reconnect_grace_ms
        self._sessions: dict[BrokerId, _Session] = {}
        self._ticked_at: MonotonicMs | None = None

    def expect(self, life: BrokerLife, now: MonotonicMs, until: MonotonicMs | None = None) -> None:
        """Begin the session of a broker that was alive for the controller before.

        Args:
            until: the end of the session of a broker that is most likely gone; None for the others.
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
        """A registered life sent a heartbeat: its session continues, or begins."""
        self._sessions[life.broker_id] = _Session(
            life,
            MonotonicMs(now + self._timeout_ms),
            is_confirmed=True,
            metadata_epoch=metadata_epoch,
        )

    def on_connection_broken(self, life: BrokerLife, now: MonotonicMs) -> None:
        """A broker's connection broke, and it has no other. The next heartbeat restores the
        session."""
        session = self._sessions.get(life.broker_id)
        if session is not None and session.life == life:
            session.ends_at = min(session.ends_at, MonotonicMs(now + self._grace_ms))

    def end(self, broker_id: BrokerId) -> None:
        """Forget a session: another life replaces this one."""
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: BrokerId) -> bool:
        """Whether a process has sent a heartbeat, and may still live."""
        session = self._sessions.get(broker_id)
        return session is not None and session.is_confirmed

    def is_expected(self, broker_id: BrokerId) -> bool:
        """Whether a process may live that has sent this controller no heartbeat yet."""
        session = self._sessions.get(broker_id)
        return session is not None and not session.is_confirmed

    def metadata_epoch(self, broker_id: BrokerId) -> int:
        """Return the epoch of the image that a broker has applied; -1 when that is not known."""
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_epoch

    def next_end(self) -> MonotonicMs | None:
        """Return when the next session ends without a heartbeat; None: there is none."""
        return min((session.ends_at for session in self._sessions.values()), default=None)

    def ended(self, now: MonotonicMs) -> list[BrokerLife]:
        """Remove and return the lives whose session is over. To be called with every tick."""
        since = now if self._ticked_at is None else self._ticked_at
        self._ticked_at = now
        if now - since > self._timeout_ms // 2:
            for session in self._sessions.values():
                session.ends_at = MonotonicMs(now + self._timeout_ms)
        over = [session for session in self._sessions.values() if session.ends_at <= now]
        for session in over:
            del self._sessions[session.life.broker_id]
        return [session.life for session in over]
