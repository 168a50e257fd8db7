"""What programs log: events with stable names, each declared once.

Each part declares its events, and the fields that only they have, in its module `events`, and logs
nothing else. A test says so, and that each call gives the fields that are declared.
`docs/events.md` is made from the declarations. The name stays when the text is
improved, so searches and alerts use the name.

The core logs nothing itself: `Event.log` is given the logger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

AUDIT_LOGGER: Final = "millrace.audit"
"""The logger of administrative acts and of refusals."""
NAME_ATTRIBUTE: Final = "event_name"
"""Attribute of a `logging.LogRecord` with the name of its event."""


class Level(IntEnum):
    """Severities, with the numbers of the standard library's `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


class Logger(Protocol):
    """The part of `logging.Logger` that is used."""

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: BaseException | None = None,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One kind of event, with which code logs it.

    Attributes:
        name: never changes; words joined by `_`.
        level: its severity.
        text: what people read; `%(field)s` stands for a field.
        meaning: what has happened, in more words.
        action: what to do about it.
        fields: names of its fields; `FIELDS`, here or beside the event, has their meanings.
    """

    name: str
    level: Level
    text: str
    meaning: str
    action: str = "Nothing."
    fields: tuple[str, ...] = ()

    def log(
        self,
        logger: Logger,
        *,
        cause: BaseException | None = None,
        is_repeat: bool = False,
        **fields: object,
    ) -> None:
        """Log the event.

        Args:
            logger: of the module that logs it.
            cause: its trace is logged, too.
            is_repeat: it was logged before and goes on: it is logged for debugging only.
            fields: all that are declared.
        """
        logger.log(
            Level.DEBUG if is_repeat else self.level,
            self.text,
            *([fields] if fields else []),  # `logging` formats no text by an empty mapping.
            exc_info=cause,
            stacklevel=2,
            extra={NAME_ATTRIBUTE: self.name, **fields},
        )


FIELDS: Final[Mapping[str, str]] = {
    "broker": "a broker's id",
    "file": "path of the file",
    "error": "what is wrong, and what to do",
    "group": "a consumer group",
    "lines": "how many lines were not written",
    "partition": "`topic-number`, with the topic's id where its name is not known; beside `topic` "
    "the number alone",
    "partitions": "how many partitions",
    "path": "of the file, or of the page",
    "problem": "what is wrong",
    "reason": "why",
    "topic": "its name",
}
"""The meaning of each field that events of several parts have: it is the same in all of them."""
