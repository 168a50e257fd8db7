"""What programs log: events with stable names, each declared once.

Each part declares its events in its module `events`, and logs nothing else. A test says so, and
that each call gives the fields that are declared. `docs/events.md` is made from the declarations.
The name stays when the text is improved, so searches and alerts use the name.

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
    """See the module.

    Attributes:
        name: never changes; words joined by `_`.
        level: its severity.
        text: what people read; `%(field)s` stands for a field.
        meaning: what has happened, in more words.
        action: what to do about it.
        fields: names of its fields; `FIELDS` has their meanings.
    """

    name: str
    level: Level
    text: str
    meaning: str
    action: str
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
    "act": "`apply`, `patch` or `delete`",
    "address": "`host:port`; of a caller, from which it is connected",
    "allowed": "what is possible instead of what is configured",
    "appended": "`NO`, or `MAYBE`: it may have been done nevertheless",
    "at": "address of the broker at the other end",
    "attempts": "how often the record was tried",
    "batch": "number of the micro-batch",
    "broker": "a broker's id",
    "bytes_after": "size of the log",
    "bytes_before": "size of the log",
    "cleaner_point": "offset up to which the log is compacted",
    "client": "`producer` or `consumer`",
    "client_id": "the name that a client gives itself",
    "closed": "connections that were closed since the last such line",
    "cluster_id": "the cluster's id",
    "committed_offset": "records before it were acknowledged",
    "connections": "open ones",
    "copy_epoch": "the last life that used the copy of the disk",
    "connections_max": "as configured",
    "differences": "the settings, with both values",
    "directory_ids": "ids of log directories",
    "drained": "ids of brokers",
    "duration_ms": "how long it took",
    "duty": "what was to be done",
    "end_offset": "offset after the last record",
    "entries": "the first 20 entries of a request, as `orders`",
    "entry_count": "how many entries it has",
    "error": "what is wrong, and what to do",
    "event_repeated": "the name of the event",
    "first": "the first 20 partitions, with the ends of their logs",
    "from_offset": "of the record that was to be read next",
    "group": "a consumer group",
    "in_s": "seconds until the next attempt",
    "kept": "the first 20 partitions whose segments stay",
    "kept_in": "folder with the damaged files",
    "kind": "of the object",
    "leader": "the leader's broker id",
    "leader_epoch": "the leader's epoch",
    "lines": "how many lines were not written",
    "listener": "`clients`, `outside` or `brokers`",
    "log": "folder of the log",
    "log_dir": "the log directory",
    "log_dirs": "the configured log directories",
    "log_end_offset": "end of the new leader's log; none: unknown",
    "lost_epoch": "the last life that used the disk that is given up",
    "max_poll_interval_ms": "as configured",
    "method": "the name of the call, or of the request",
    "most_from": "host with the most connections",
    "namespace": "of Kubernetes",
    "object": "its name",
    "of_these": "how many of the connections it has",
    "offset": "of the record",
    "open_files": "how many files the process may open",
    "outcome": "`done`, `refused`, `partly refused`, or `failed`: it failed as a whole",
    "partition": "`topic-number`, with the topic's id where its name is not known; beside `topic` "
    "the number alone",
    "partitions": "how many partitions",
    "path": "of the file, or of the page",
    "pause_ms": "until the next attempt",
    "pod": "its name",
    "principal": "the proved identity of a client",
    "problem": "what is wrong",
    "query": "the name of a Spark query",
    "quota": "the quota, or its name",
    "reason": "why",
    "records": "how many records",
    "refused": "the refused entries, with the name of the error of each",
    "refused_count": "how many entries were refused",
    "repeats": "how often it was seen again",
    "request": "what was asked for, as `create_topics`",
    "rows": "how many rows",
    "skipped": "how many offsets are not read",
    "software": "the client's library and version, as it says",
    "source": "from where",
    "start_offset": "offset of the first record",
    "step": "what was done",
    "target": "to where",
    "throttle_ms": "how long the broker delays an answer",
    "tier_end_offset": "records before it are on an HDD",
    "to_offset": "of the record that is read next",
    "topic": "its name",
    "topic_id": "its id",
    "undrained": "ids of brokers",
    "unregistered": "ids of brokers",
    "where": "what was being done",
    "work": "`cluster`, `topics` or `quotas`",
}
"""The meaning of each field, in all events alike."""
