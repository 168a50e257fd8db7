"""Reading as a member of a consumer group: what was written is committed, and nothing else.

So the group gets each record at least once, also when the command is killed: the next member begins
after the last record whose output was flushed a second before.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import click

from millrace.cli.arguments.read_start import Beginning, End, Position
from millrace.cli.console.output import say
from millrace.cli.topics.topic_selection import joined
from millrace.core.errors import (
    MillraceError,
    RetriableError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.topics import PartitionName

if TYPE_CHECKING:
    from millrace.client import SyncConsumer

_COMMIT_SECONDS: Final = 1.0
_NO_MEMBER: Final = (StaleMemberEpochError, UnknownMemberIdError)
"""Others have the partitions; they read again what was not committed."""


def reset_of(start: Position) -> Literal["beginning", "end"]:
    """Return where a group begins in partitions without a committed position.

    Raises:
        click.UsageError: a group cannot begin there.
    """
    match start:
        case Beginning():
            return "beginning"
        case End():
            return "end"
    raise click.UsageError(
        "a group goes on where it has committed: --from may be 'beginning' or 'end', for "
        "partitions without a position. `millrace group reset` moves a group"
    )


class Membership:
    """A member's share of its group: which records it has read and written, and committed.

    Args:
        consumer: with a group, and without automatic commits.
        passed: the next offset to read of each partition, whose output may not be flushed yet;
            partitions that the member loses are removed from it.
    """

    def __init__(self, consumer: "SyncConsumer", passed: dict[PartitionName, int]) -> None:
        self._consumer = consumer
        self._passed = passed
        self._written: dict[PartitionName, int] = {}
        """The next offset of each partition after the records whose output was flushed."""
        self._committed: dict[PartitionName, int] = {}
        self._due = time.monotonic() + _COMMIT_SECONDS

    def join(self, topics: Sequence[str], *, is_regex: bool) -> None:
        """Read topics, or those that a pattern matches, also later ones."""
        self._consumer.subscribe(
            () if is_regex else topics,
            pattern=joined(topics) if is_regex else "",
            on_revoked=self._on_revoked,
            on_lost=self._forget,
        )

    def on_flushed(self) -> None:
        """Commit now and then; called when the output of all records is flushed."""
        self._written = dict(self._passed)
        if time.monotonic() >= self._due:
            with suppress(RetriableError):  # The next commit includes this one.
                self._commit()
            self._due = time.monotonic() + _COMMIT_SECONDS

    def leave(self) -> None:
        """Commit before the consumer is closed."""
        try:
            self._commit()
        except MillraceError as error:
            say(f"the group may read the last records again: {error.message}")
        except KeyboardInterrupt:
            say("the group may read the last records again: its coordinator did not answer in time")
            raise

    def _on_revoked(self, partitions: list[PartitionName]) -> None:
        with suppress(RetriableError):  # They are read again.
            self._commit(partitions)
        self._forget(partitions)

    def _forget(self, partitions: list[PartitionName]) -> None:
        for partition in partitions:
            self._passed.pop(partition, None)
            self._written.pop(partition, None)
            self._committed.pop(partition, None)

    def _commit(self, partitions: Iterable[PartitionName] | None = None) -> None:
        written = self._written
        chosen = written if partitions is None else written.keys() & set(partitions)
        news = {
            place: at for place in chosen if self._committed.get(place) != (at := written[place])
        }
        if news:
            with suppress(*_NO_MEMBER):
                self._consumer.commit(news)
                self._committed.update(news)
