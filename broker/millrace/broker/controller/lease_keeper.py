"""Holds or seeks the controller's lease on a thread of its own.

The loop may be busy for longer than a lease lasts, as with elections for thousands of partitions,
and must not lose the lease in the middle: another controller would repeat the work. But a loop that
stands still for as long as a session has lost its brokers, and gives up.

Brokers that do not hold the lease read it as soon as it may have changed: it was given back, or has
another holder. A holder that lost it finds out when it renews.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from millrace.broker.coordination.store import CoordinationStore, CoordinationUnavailableError
from millrace.core.controller.lease import LeaseElection
from millrace.core.errors import MillraceError
from millrace.core.ids import MonotonicMs
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now

_T = TypeVar("_T")

_WATCH_STEP_MS: Final = 20
"""Pause between two looks at the lease of a store that tells no changes."""


class LeaseKeeper:
    """The thread that reads and renews the lease of a store.

    Args:
        election: decides what is written; the loop may ask it as well.
        silence_ms_max: a loop without a turn for so long gives up.
        on_read: called on the loop after each try, with why the lease could not be read; empty: it
            could.
    """

    def __init__(
        self,
        store: CoordinationStore,
        election: LeaseElection,
        silence_ms_max: int,
        on_read: Callable[[str], None],
    ) -> None:
        self._store = store
        self._election = election
        self._silence_ms_max = silence_ms_max
        self._on_read = on_read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._is_over = False
        self._has_news = host.current.new_event()  # Of the lease, or this is over.
        self._is_told = store.watch_lease(self._has_news.set)
        self._turned_at = monotonic_now()  # When the loop last made a turn.

    async def run(self) -> None:
        """Hold or seek the lease until `end`."""
        self._turned_at = monotonic_now()
        await self._in_thread(self._keep, asyncio.get_running_loop())

    def end(self) -> None:
        """Let `run` return soon."""
        self._is_over = True
        self._has_news.set()

    async def give_back(self) -> None:
        """Give the lease back after `end`, if it is held and the store answers."""
        with contextlib.suppress(MillraceError):  # Then the lease runs out by itself.
            # Read again: a renewal may have been under way.
            record = self._election.give_back(await self._in_thread(self._store.read_lease))
            if record is not None:
                await self._in_thread(self._store.compare_and_swap_lease, record)

    def close(self) -> None:
        """Wait for the thread's last call."""
        self._thread.shutdown()

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        unavailable = ""
        while not self._is_over:
            mark: int | None = None
            if not self._is_silent(monotonic_now()):
                try:
                    mark = self._store.lease_mark()  # Before reading: no write falls between.
                    self._renew()
                    unavailable = ""
                except CoordinationUnavailableError as error:
                    unavailable = error.message
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(self._on_turn, unavailable)
            self._pause(mark)

    def _on_turn(self, unavailable: str) -> None:
        self._turned_at = monotonic_now()
        if not self._is_over:
            self._on_read(unavailable)

    def _renew(self) -> None:
        record = self._election.on_read(self._store.read_lease(), monotonic_now())
        if record is not None:
            sent_at = monotonic_now()
            if self._is_silent(sent_at):  # Asked of the time that the lease counts from.
                return
            if self._store.compare_and_swap_lease(record):
                self._election.on_written(record, sent_at)
            else:  # Another broker was quicker: find out at once which.
                self._election.on_read(self._store.read_lease(), monotonic_now())

    def _is_silent(self, now: MonotonicMs) -> bool:
        """Whether the loop has lost its brokers: it has made no turn for too long."""
        return now - self._turned_at >= self._silence_ms_max

    def _pause(self, mark: int | None) -> None:
        now = monotonic_now()
        look_at = now + self._election.pause_ms(now)
        watches = mark is not None and not self._election.is_held(now)
        while (left_ms := look_at - monotonic_now()) > 0:
            looks = watches and not self._is_told
            step_ms = min(left_ms, _WATCH_STEP_MS) if looks else left_ms
            if self._has_news.wait(step_ms / 1000):
                if self._is_over:
                    return
                self._has_news.clear()
            with contextlib.suppress(CoordinationUnavailableError):
                if watches and self._store.lease_mark() != mark:
                    return

    def _in_thread(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
