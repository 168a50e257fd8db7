"""The broker's side of a fetch session, spoken to in lines of text."""

from tests.scenario.transcript import Command

from millrace.core.errors import MillraceError
from millrace.core.ids import LeaderEpoch, MonotonicMs, Offset, TopicId, TopicPartition
from millrace.core.replica.fetch.session import (
    FetchPosition,
    FetchSession,
    SessionLimits,
    SessionSettings,
)


class SessionCommands:
    """Runs commands; each answers with what the machine says, the queue, and the credit."""

    def __init__(self) -> None:
        self._session = FetchSession(
            SessionLimits(partitions_max=3, response_bytes_max=1000, max_wait_ms_max=5000)
        )
        self._now = 0

    def __call__(self, command: Command) -> list[str]:
        """Run a command; `at=` moves the clock."""
        self._now = command.number("at", self._now)
        try:
            lines: list[str] = getattr(self, "_" + command.verb.replace("-", "_"))(command)
        except MillraceError as error:
            lines = [f"{error.name()}: {error.message}"]
        return [*lines, self._state()]

    def _configure(self, command: Command) -> list[str]:
        settings = {name: int(value) for name, value in command.named.items() if name != "at"}
        self._session.configure(SessionSettings(**settings))  # type: ignore[arg-type]
        return []

    def _add(self, command: Command) -> list[str]:
        handle = int(command.words[0])
        position = FetchPosition(
            handle,
            TopicPartition(TopicId(b"t" * 16), handle),
            Offset(command.number("offset", 0)),
            LeaderEpoch(0),
            LeaderEpoch(-1),
            0,
        )
        replaced = self._session.add(position, MonotonicMs(self._now))
        return [f"in place of offset {replaced.fetch_offset}"] if replaced else []

    def _remove(self, command: Command) -> list[str]:
        left = self._session.remove(int(command.words[0]))
        return [f"left at offset {left.fetch_offset}" if left else "was not there"]

    def _grant(self, command: Command) -> list[str]:
        self._session.grant(command.number("bytes"))
        return []

    def _advanced(self, command: Command) -> list[str]:
        self._session.on_advanced(int(command.words[0]), MonotonicMs(self._now))
        return []

    def _sent(self, command: Command) -> list[str]:
        self._session.on_sent(
            self._session.positions[int(command.words[0])],
            command.number("bytes"),
            Offset(command.number("next")),
            LeaderEpoch(0),
        )
        return []

    def _nothing(self, command: Command) -> list[str]:
        self._session.on_nothing([self._session.positions[int(word)] for word in command.words])
        return []

    def _found(self, command: Command) -> list[str]:
        wait = self._session.must_wait(command.number("bytes"), MonotonicMs(self._now))
        return [f"wait {wait} ms for more" if wait else "send it"]

    def _responded(self, command: Command) -> list[str]:
        self._session.on_responded(MonotonicMs(self._now))
        return []

    def _state(self) -> str:
        turn = " ".join(
            f"{position.handle}@{position.fetch_offset}" for position in self._session.next_turn()
        )
        sends = "can send" if self._session.can_send else "cannot send"
        return f"turn=[{turn}] credit={self._session.credit} {sends}"
