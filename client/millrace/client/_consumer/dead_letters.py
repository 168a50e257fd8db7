"""The topic for records whose processing has failed, and the loop that processes records with it.

Each record is processed at least once: the position of the consumer is beyond it only when its
function has returned, or when the topic of the dead has acknowledged it. So what the consumer
commits, by itself or for its user, never includes a record that waits for another attempt, or whose
function has not returned, also when the consumer is closed meanwhile.

`core/client/consumer/retries.py` decides when a record is tried again. The loop polls between two
records, so the consumer stays in its group as long as one call of the function takes less than
`max_poll_interval_ms`.

Source: the headers are those of dead-letter queues in Kafka (KIP-1191, KIP-298).
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict, Unpack

import pyarrow as pa

from millrace.client import events
from millrace.client._cluster.pauses import spread
from millrace.client._consumer.reading import ConsumerCore
from millrace.client._consumer.records import POLL_EVERY_MS, Record
from millrace.client._settings import Milliseconds, documents
from millrace.client._threads.logs import Log
from millrace.core.client.consumer.retries import Retries
from millrace.core.errors import InvalidConfigError, InvalidRequestError
from millrace.core.settings import Unit, parse, setting
from millrace.core.topics import parse_topic_name
from millrace.runtime.clock import monotonic_now

_log = Log(__name__)

_PREFIX: Final = "__dlq.errors."
_MESSAGE_LENGTH_MAX: Final = 1_000
"""Characters of an error's message that a header keeps."""
_LOGGED_LENGTH_MAX: Final = 200
"""Characters of it that the log shows."""
_WAIT_MS: Final = 1_000
"""How long one poll waits for records."""

Handler = Callable[[Record], object]
"""Processes one record; a function or a coroutine function."""


def _errors(value: object) -> tuple[type[Exception], ...]:
    if isinstance(value, Iterable):
        errors = tuple(value)
        if all(isinstance(error, type) and issubclass(error, Exception) for error in errors):
            return errors
    raise ValueError("must be classes of exceptions, as [ValueError]")


@dataclass(frozen=True, kw_only=True)
class DeadLettersConfig:
    """Settings of `DeadLetters`."""

    attempts: int = setting(
        3, "How often a record is processed at most.", minimum=1, maximum=1_000_000
    )
    backoff_ms: int = setting(
        1_000,
        "Pause before the second attempt; each further pause is twice as long.",
        unit=Unit.MILLISECONDS,
    )
    backoff_max_ms: int = setting(
        60_000, "Longest pause between two attempts.", unit=Unit.MILLISECONDS
    )
    not_retried: tuple[type[Exception], ...] = setting(
        (),
        "Classes of errors after which a record is given up at once, as another attempt would fail "
        "in the same way.",
        parse=_errors,
        allowed="classes of exceptions",
    )


class DeadLettersSettings(TypedDict, total=False):
    """See `DeadLettersConfig`."""

    attempts: int
    backoff_ms: Milliseconds
    backoff_max_ms: Milliseconds
    not_retried: Iterable[type[Exception]]


class AnyProducer(Protocol):
    """A `Producer` or a `SyncProducer`."""

    @property
    def acks(self) -> int:
        """The acknowledgement that it waits for; -1: that of all in-sync replicas."""

    def send_batch(
        self, topic: str, values: Any = None, keys: Any = None, *, headers: Any = None
    ) -> Awaitable[object]:
        """Append records; the result is there when they are acknowledged."""


@documents(DeadLettersConfig)
class DeadLetters:
    """The topic for records that `Consumer.process` gives up.

        dead_letters = DeadLetters(producer, "orders.dead", attempts=5, backoff_ms="2s")

    A dead record has the key, the value and the headers of the original, and its key chooses the
    partition. Its timestamp is the time at which it was given up, so that retention counts from
    then. These headers say more, as text:

    - `__dlq.errors.topic`, `.partition`, `.offset` and `.timestamp` of the original;
    - `__dlq.errors.group`, if the consumer is in one;
    - `__dlq.errors.delivery.count`: how often it was processed;
    - `__dlq.errors.exception.class.name` and `__dlq.errors.message`: of the last error, the message
      up to 1,000 characters.

    Args:
        producer: writes the dead records: a `Producer` or a `SyncProducer`, with `acks="all"`. Its
            serializers are not used.
        topic: the topic of the dead, which must be there.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds; or the producer does
            not wait for all in-sync replicas.
        InvalidTopicError: not a topic's name.
    """

    def __init__(
        self,
        producer: AnyProducer,
        topic: str,
        **settings: Unpack[DeadLettersSettings],
    ) -> None:
        config = parse(DeadLettersConfig, settings)
        if producer.acks != -1:
            raise InvalidConfigError(
                'dead letters need a producer with acks="all": a record must not be lost after its '
                "original was committed"
            )
        self._producer = producer
        self._topic = str(parse_topic_name(topic))
        self._config = config

    def _new_retries(self) -> Retries:
        """Return retries for one consumer."""
        config = self._config
        return Retries(config.attempts, *spread(config.backoff_ms, config.backoff_max_ms))

    def _is_retried(self, error: Exception) -> bool:
        """Whether another attempt may succeed after this error."""
        return not isinstance(error, self._config.not_retried)

    async def _bury(self, record: Record, error: Exception, attempts: int, group: str) -> None:
        """Write a record to the topic of the dead; return when it is acknowledged.

        Raises:
            MillraceError: it is not there, or may not be.
        """
        if record.topic == self._topic:
            raise InvalidRequestError(
                f"a record of {self._topic!r}, the topic of the dead, cannot be processed either: "
                "do not process it with the same topic for what fails"
            ) from error
        # As Arrow, which no serializer changes: the record's own bytes, by index.
        await self._producer.send_batch(
            self._topic,
            pa.array([record[5]], pa.binary()),
            pa.array([record[4]], pa.binary()),
            headers=[_headers(record, error, attempts, group)],
        )


async def process(
    core: ConsumerCore,
    lend: Callable[[int], Awaitable[Iterable[Record]]],
    handler: Handler,
    dead_letters: DeadLetters,
) -> None:
    """See `Consumer.process`.

    Args:
        core: of the consumer.
        lend: waits so many ms for records of a partition, and hands out each when it is reached.
        handler: processes a record.
        dead_letters: where records go that are given up.
    """
    retries = dead_letters._new_retries()
    while True:
        now = monotonic_now()
        if due := retries.take_due(now):
            # Others may own a partition by now; it is not paused when it comes back.
            core.resume(set(due).intersection(core.assigned()))
        next_due = retries.next_due()
        wait_ms = _WAIT_MS if next_due is None else min(max(next_due - now, 1), _WAIT_MS)
        lent = await lend(wait_ms)
        poll_at = monotonic_now() + POLL_EVERY_MS
        for record in lent:
            place = (record.topic, record.partition)
            is_done = False
            with core.handing_out.under_way(record.offset):
                try:
                    is_done = await _is_done(
                        record, handler, retries, dead_letters, core.config.group
                    )
                finally:
                    # Also when it was interrupted. A closed consumer has committed already.
                    if not is_done and not core.is_closed:
                        core.seek(place, record.offset)
            if core.is_closed:
                return
            if not is_done:
                core.pause([place])
            if monotonic_now() >= poll_at:
                break  # The next loop goes on with the record after this one.


async def _is_done(
    record: Record, handler: Handler, retries: Retries, dead_letters: DeadLetters, group: str
) -> bool:
    """Process a record, or give it up; False: it is to be tried again.

    Raises:
        MillraceError: it was given up, and the topic of the dead does not take it.
    """
    place = (record.topic, record.partition)
    try:
        done = handler(record)
        if inspect.isawaitable(done):
            await done
    except Exception as error:
        attempts = retries.on_failed(place, record.offset)
        pause_ms = retries.pause_ms(attempts) if dead_letters._is_retried(error) else None
        if pause_ms is not None:
            retries.on_paused(place, monotonic_now() + pause_ms)
            events.RECORD_RETRIED.log(
                _log,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                attempts=attempts,
                pause_ms=pause_ms,
                error=repr(error)[:_LOGGED_LENGTH_MAX],
            )
            return False
        await dead_letters._bury(record, error, attempts, group)
        events.RECORD_BURIED.log(
            _log,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            attempts=attempts,
            error=repr(error)[:_LOGGED_LENGTH_MAX],
        )
    retries.on_done(place)
    return True


def _headers(
    record: Record, error: Exception, attempts: int, group: str
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a dead record; those of an earlier death are replaced."""
    kept = [(name, value) for name, value in record.headers if not name.startswith(_PREFIX)]
    cause = type(error)
    about = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "group": group,
        "delivery.count": attempts,
        "exception.class.name": f"{cause.__module__}.{cause.__qualname__}",
        "message": str(error)[:_MESSAGE_LENGTH_MAX],
    }
    if not group:
        del about["group"]
    return kept + [
        (_PREFIX + name, str(value).encode(errors="replace")) for name, value in about.items()
    ]
