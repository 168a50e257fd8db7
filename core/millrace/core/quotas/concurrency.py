"""How many calls and connections each caller has at a time.

A caller is a principal; one that proves nothing is known by its address alone. A connection counts
while it has a call: one without is closed where others need its place.
"""

from dataclasses import dataclass, field

from millrace.core.callers import ANONYMOUS, Caller


@dataclass(slots=True)
class CallsUnderWay:
    """Counts calls, those of all listeners of a broker together.

    Args:
        calls_max: of one caller at a time.
        connections_max: of one caller that have a call.
    """

    calls_max: int
    connections_max: int
    _calls: dict[str, int] = field(default_factory=dict)
    _connections: dict[str, dict[str, int]] = field(default_factory=dict)  # Calls, by address.

    def begin(self, caller: Caller) -> str:
        """Count a call; return the setting that does not allow it; empty: it is counted."""
        name = _name(caller)
        calls, connections = self._calls.get(name, 0), self._connections.setdefault(name, {})
        if calls >= self.calls_max:
            return "principal_calls_max"
        if caller.address not in connections and len(connections) >= self.connections_max:
            return "principal_connections_max"
        self._calls[name] = calls + 1
        connections[caller.address] = connections.get(caller.address, 0) + 1
        return ""

    def end(self, caller: Caller) -> None:
        """A call that was counted has ended."""
        name = _name(caller)
        connections = self._connections[name]
        connections[caller.address] -= 1
        if not connections[caller.address]:
            del connections[caller.address]
        self._calls[name] -= 1
        if not self._calls[name]:
            del self._calls[name], self._connections[name]


def _name(caller: Caller) -> str:
    if caller.principal != ANONYMOUS:
        return caller.principal
    return f"{ANONYMOUS} {caller.address.rpartition(':')[0]}"
