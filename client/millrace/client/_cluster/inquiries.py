"""Questions that all brokers are asked, as the one that answers first may be cut off.

If no broker has the answer, all of them are asked again only after a pause: a fraction of the time
for which this question is open. Each question has its own pause, because one that was just raised
may well have an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from millrace.client._cluster.shared_tasks import SharedTasks
from millrace.core.pauses import pause_after

_FORGOTTEN_S: Final = 5.0
"""A question that was not asked for this long counts as a new one."""
_OPEN_QUESTIONS_MAX: Final = 100
_PAUSE_MS: Final = 500
_PAUSE_MS_MAX: Final = 10_000
_PAUSE_FRACTION: Final = 4
"""All brokers are asked again after this fraction of the time for which the question is open."""


class Question(NamedTuple):
    """What all brokers can be asked.

    Attributes:
        topics: names of the topics that it is about.
        partition: does the one topic have this partition? None: is there any news of the topics?
    """

    topics: frozenset[str]
    partition: int | None = None


@dataclass(slots=True)
class _OpenQuestion:
    """A question that no broker has answered yet; times of the loop.

    Attributes:
        since: when it was asked first.
        last_asked_at: when it was asked last.
        inquiry_at: when all brokers may be asked, or asked again.
        is_answered: whether the metadata has the answer by now, as compared with `since`.
    """

    since: float
    last_asked_at: float
    inquiry_at: float
    is_answered: Callable[[], bool]


class Inquiries:
    """The open questions of one client.

    Args:
        ask_all_brokers: asks about topics, until the second argument says that it is enough.
    """

    def __init__(
        self, ask_all_brokers: Callable[[Iterable[str], Callable[[], bool]], Awaitable[None]]
    ) -> None:
        self._ask_all_brokers = ask_all_brokers
        self._open: dict[Question, _OpenQuestion] = {}
        """The one that was asked last is the last."""
        self._tasks: SharedTasks[Question, None] = SharedTasks()

    async def ask(
        self, question: Question, is_answered: Callable[[], bool], *, patience_s: float = 0.0
    ) -> None:
        """Ask all brokers, unless a look-up has answered the question or its pause lasts.

        Callers with the same question share one inquiry.

        Args:
            question: what the caller wants to know.
            is_answered: whether the metadata answers it by now.
            patience_s: how long look-ups alone are tried first.
        """
        if is_answered():
            self._open.pop(question, None)
            return
        now = asyncio.get_running_loop().time()
        asked = self._open.pop(question, None)
        is_forgotten = asked is None or now - asked.last_asked_at > _FORGOTTEN_S
        if asked is None or is_forgotten or asked.is_answered():
            asked = _OpenQuestion(now, now, now + patience_s, is_answered)
        asked.last_asked_at = now
        self._open[question] = asked
        if len(self._open) > _OPEN_QUESTIONS_MAX:
            del self._open[next(iter(self._open))]
        if question in self._tasks or now >= asked.inquiry_at:
            await self._tasks.result(question, partial(self._run, question, asked))

    async def _run(self, question: Question, asked: _OpenQuestion) -> None:
        """Ask all brokers; begin the pause of the question if none has the answer."""
        await self._ask_all_brokers(question.topics, asked.is_answered)
        if asked.is_answered():
            self._open.pop(question, None)
            return
        now = asyncio.get_running_loop().time()
        pause_ms = pause_after(
            int((now - asked.since) * 1000),
            _PAUSE_MS,
            _PAUSE_MS_MAX,
            fraction=_PAUSE_FRACTION,
        )
        asked.last_asked_at = now
        asked.inquiry_at = now + pause_ms / 1000

    def cancel(self) -> list["asyncio.Task[None]"]:
        """End all of them for good, and return their tasks."""
        return self._tasks.cancel()
