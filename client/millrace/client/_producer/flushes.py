"""The flushes that wait for outcomes of records, and the failures that were not told yet.

A failure is raised in every flush that waits for its record, or else once in the next one, unless
the record's handle has reported it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from millrace.client._producer.counters import ProducerCounters
from millrace.client._producer.handles import own
from millrace.core.client.producer.intake import Intake
from millrace.core.errors import MillraceError

_UNTOLD_MAX: Final = 1_000
"""Failures kept for the next flush, which raises the first that handles have not reported."""


@dataclass(slots=True, eq=False)
class _Flush:
    """A waiting flush; others may wait beside it, for some of the same records."""

    pending: set[Intake]
    future: asyncio.Future[None]
    failure: tuple[MillraceError, int] | None
    """The first failure that it has to raise, and its number of records."""


class Flushes:
    """The waiting flushes of one producer.

    Args:
        counters: count the failures.
        on_error: called for each of them, as a transaction tells of them: no later flush does.
    """

    def __init__(
        self, counters: ProducerCounters, on_error: Callable[[MillraceError], None] | None = None
    ) -> None:
        self._counters = counters
        self._on_error = on_error
        self._waiting: list[_Flush] = []
        self._untold: dict[MillraceError, int] = {}
        """Failures since the last flush, in order, and their numbers of records. Handles may have
        reported some."""

    def untold_records(self) -> int:
        """Return how many records failed with an error that nobody has seen; from any thread."""
        return sum(count - error.told.bit_count() for error, count in self._untold.copy().items())

    async def wait(self, pending: set[Intake]) -> None:
        """Wait for the outcomes of records.

        Raises:
            MillraceError: the first failure among them, or since the last flush.
        """
        untold = (failure for failure in self._untold.items() if not _is_told(*failure))
        flush = _Flush(pending, asyncio.get_running_loop().create_future(), next(untold, None))
        self._untold.clear()
        if flush.pending:
            self._waiting.append(flush)
            try:
                await flush.future
            except asyncio.CancelledError:
                if flush.failure is not None:  # The next one raises it.
                    self._untold = dict([flush.failure, *self._untold.items()])
                raise
            finally:
                self._waiting.remove(flush)
        if flush.failure is not None:
            raise own(flush.failure[0])

    def on_failed(self, intakes: Iterable[Intake], count: int, error: MillraceError) -> None:
        """Keep a failure for every flush that waits for these records, or for the next one."""
        self._counters.failed_records += count
        self._counters.failures[error.name()] += count
        if self._on_error is not None:
            self._on_error(error)
        is_untold = False
        for intake in intakes:
            waiting = [flush for flush in self._waiting if intake in flush.pending]
            for flush in waiting:
                flush.failure = flush.failure or (error, count)
            is_untold = is_untold or not waiting
        if is_untold and self._on_error is None:
            untold = self._untold
            untold[error] = untold.get(error, 0) + count
            if len(untold) > _UNTOLD_MAX:
                oldest = next(iter(untold))
                del untold[oldest if _is_told(oldest, untold[oldest]) else error]

    def on_complete(self, intake: Intake) -> None:
        """Wake the flushes that waited for these records last."""
        for flush in self._waiting:
            flush.pending.discard(intake)
            if not flush.pending and not flush.future.done():
                flush.future.set_result(None)


def _is_told(error: MillraceError, count: int) -> bool:
    """Whether handles have reported an error for all of these records."""
    return error.told.bit_count() >= count
