"""Structured logs: for people on a terminal, JSON lines otherwise.

An event has its name in both forms: `[broker_ready]` after the text, or as `event` beside
`message`. Lines of libraries have no name.
"""

import logging
import sys
from threading import Lock
from typing import Final, TextIO

import structlog

from millrace.core.broker_config import AuditScope, LogFormat, LoggingConfig
from millrace.core.events import AUDIT_LOGGER, NAME_ATTRIBUTE

_WINDOW_S: Final = 60.0
_AUDIT_LEVELS: Final = {
    AuditScope.ALL: logging.INFO,
    AuditScope.REFUSALS: logging.WARNING,
    AuditScope.NONE: logging.CRITICAL + 1,
}


def configure_logging(config: LoggingConfig, stream: TextIO = sys.stderr) -> None:
    """Send every log record of the process, the libraries' too, to `stream` in one form."""
    is_human = config.format is LogFormat.HUMAN or (
        config.format is LogFormat.AUTO and stream.isatty()
    )
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor
    if is_human:
        shared.append(_name_last)
        renderer = structlog.dev.ConsoleRenderer()
    else:
        shared += [
            structlog.stdlib.add_logger_name,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message", replace_by=NAME_ATTRIBUTE),
        ]
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(RepeatsFilter(config.repeats_max))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(_AUDIT_LEVELS[config.audit])


class RepeatsFilter:
    """Bounds the lines of one event in a minute; those of libraries by their loggers.

    The audit log has a bound of its own, which does not leave out an act because of others.

    Args:
        repeats_max: lines of one event.
    """

    def __init__(self, repeats_max: int) -> None:
        self._repeats_max = repeats_max
        self._lock = Lock()
        self._begun_at = 0.0
        self._counts: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; called by any thread."""
        if record.name == AUDIT_LOGGER:
            return True
        name = getattr(record, NAME_ATTRIBUTE, record.name)
        with self._lock:
            if not 0 <= record.created - self._begun_at < _WINDOW_S:  # The clock may be set back.
                self._begun_at = record.created
                self._counts.clear()
            count = self._counts[name] = self._counts.get(name, 0) + 1
            if count > self._repeats_max:
                self._left_out[name] = self._left_out.get(name, 0) + 1
                return False
            if left_out := self._left_out.pop(name, 0):
                record.left_out = left_out
        return True


def _name_last(
    _logger: object, _method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Let the console show the event's name where it shows loggers: after the text."""
    if name := event.pop(NAME_ATTRIBUTE, ""):
        event["logger"] = name
    return event
