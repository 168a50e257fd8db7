"""An application of several processes that share a transaction: a driver, and executors.

The driver writes one version after another. For each it opens a transaction, and executors on
other machines write its parts: each *attempt* at a part joins with a producer of its own, and has
records that no other attempt has. Some fail, some are slow, and are made again by another one, and
some go on when the transaction is over. Then the driver names the attempts that count, and commits.

- The answer may be lost. Then it sometimes aborts, as Spark does, which must not reverse a decision
  (T19). It opens the same version again, and is told whether it is done; several processes that ask
  are told the same (T22).
- It dies, and another run takes over; the last version must be done for it (T24). The one before
  wakes up, and must neither commit nor open (T20).
- Others come with another checkpoint or an earlier version, and are refused (T21). A version is not
  forgotten while a transaction is open (T22).
- It goes on for longer than its lease, which executors renew, or sleeps, and nobody does (T23).

In the history each version is a transaction that consists of the attempts that count, invoked with
its commit; all other attempts are transactions that failed. So `tests.checkers.transactions` judges
that each version is there once, whole, and never in part.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.sim.clients.readers_and_writers import VALUE_BYTES, Client, Job
from tests.sim.world import MILLISECOND, SECOND, Violation

from millrace.client import (
    Admin,
    ApplicationVersion,
    Participant,
    Producer,
    RecordHandle,
    SharedTransaction,
)
from millrace.core.errors import (
    AbortedError,
    ConcurrentTransactionsError,
    FencedError,
    InvalidTransactionStateError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    VersionConflictError,
)

_FIRST_VALUE: Final = 1_000_000_000
_VALUES_OF_EACH: Final = 10_000_000
"""As of `transactional_clients`."""
_CHECKPOINT: Final = "checkpoint"
_REQUEST_MS: Final = 5_000
_PATIENCE_MS: Final = 3_600_000
_LOOK_US: Final = 20 * MILLISECOND
_ATTEMPT_US: Final = 3 * SECOND
"""A part is written by another attempt, too, if the last one takes longer."""
_VERSION_US: Final = 20 * SECOND
_REPEATS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationPlan:
    """What an application does.

    Attributes:
        executors: how many.
        every_us: the mean pause between two versions.
        parts_max: most parts of a version.
        records_max: most records of a part for one partition.
        lease_ms: of its transactions, as brokers have it.
        copies: the share of parts that a slow attempt writes, too.
        fails: the share of attempts that end in the middle.
        dies: the share of versions in which the driver dies before it commits.
        lasts: the share of transactions that are open for longer than their lease.
        sleeps: the share of transactions whose driver sleeps for longer, when all others are gone.
        intrudes: the share of versions beside which others try to write.
        forgets: the share of transactions while which a person would forget the version.
        asks_often: the share of versions for which several processes open the transaction.
    """

    executors: int = 2
    every_us: int = 300 * MILLISECOND
    parts_max: int = 3
    records_max: int = 2
    lease_ms: int = 2_000
    copies: float = 0.2
    fails: float = 0.1
    dies: float = 0.15
    lasts: float = 0.05
    sleeps: float = 0.05
    intrudes: float = 0.3
    forgets: float = 0.15
    asks_often: float = 0.3


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt at a part of a version.

    Attributes:
        process: its name in the history.
        shared: the transaction.
        sends: what it writes.
        before_us, within_us: how long it waits before it joins, and before it writes.
        fails: whether it ends in the middle.
        participant: what counts, once it has written.
        is_over: it has failed.
        is_judged: its outcome is in the history.
    """

    process: str
    shared: SharedTransaction
    sends: Sequence[Send]
    before_us: int
    within_us: int
    fails: bool
    participant: Participant | None = None
    is_over: bool = False
    is_judged: bool = False


class Board:
    """Where the driver leaves work for executors.

    Attributes:
        waiting: attempts that nobody has taken.
        number: of the transaction that is open, by its driver; 0: executors let go.
    """

    def __init__(self) -> None:
        self.waiting: deque[_Attempt] = deque()
        self.number = 0


class Executor(Client):
    """Writes parts for an application. Their producers are open as long as the transaction is."""

    def __init__(self, job: Job, *, application: str, board: Board) -> None:
        super().__init__(job)
        self._application = application
        self._board = board
        self._held: list[tuple[int, Producer]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def _work(self) -> None:
        while not self._is_done:
            while self._board.waiting:
                self._begin(self._perform(self._board.waiting.popleft()))
            self._let_go_all_but(self._board.number)
            await asyncio.sleep(_LOOK_US / SECOND)
        self._let_go_all_but(0)
        while self._tasks:  # Producers that are left open would renew the lease for ever.
            await asyncio.wait(self._tasks)
            self._let_go_all_but(0)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _let_go_all_but(self, number: int) -> None:
        for _, producer in [held for held in self._held if held[0] != number]:
            self._begin(self._close(producer))
        self._held = [held for held in self._held if held[0] == number]

    async def _close(self, producer: Producer) -> None:
        with contextlib.suppress(MillraceError):
            await producer.close()

    async def _perform(self, attempt: _Attempt) -> None:
        await asyncio.sleep(attempt.before_us / SECOND)
        producer = Producer(
            self._site.bootstrap,
            transactional_id=self._application,
            transport=self._machine.transport,
            linger_ms=1,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_PATIENCE_MS,
            topic_wait_ms=_PATIENCE_MS,
        )
        try:
            await producer.join_transaction(attempt.shared)
            await asyncio.sleep(attempt.within_us / SECOND)
            handles = [self._send(producer, send) for send in attempt.sends]
            if not attempt.fails:
                participant = await producer.leave_transaction()
                attempt.sends = [
                    Send(send.key, send.value, (await handle).offset)
                    for send, handle in zip(attempt.sends, handles, strict=True)
                ]
                attempt.participant = participant
        except MillraceError as error:
            self._judge(error)
        attempt.is_over = attempt.participant is None
        self._held.append((attempt.shared.number, producer))

    def _send(self, producer: Producer, send: Send) -> RecordHandle:
        value = send.value.to_bytes(VALUE_BYTES, "big")
        key = None if self._site.marks is None else value
        partition = self._site.keys.index(send.key)
        return producer.send(self._site.topic, value, key=key, partition=partition)

    def _judge(self, error: MillraceError) -> None:
        # The transaction is over, or another run has begun.
        if not isinstance(error, AbortedError | FencedError | InvalidTransactionStateError):
            super()._judge(error)


class Application(Client):
    """The driver of an application.

    Attributes:
        done: versions that are committed.
        doing: what it does, for a person.
    """

    least_in_quiet = 1

    def __init__(
        self,
        job: Job,
        *,
        number: int,
        plan: ApplicationPlan,
        board: Board,
        may_be_lost: Callable[[], bool],
    ) -> None:
        super().__init__(job)
        self.done = 0
        self.doing = "beginning"
        self._plan = plan
        self._board = board
        self._may_be_lost = may_be_lost
        self._next_value = _FIRST_VALUE + number * _VALUES_OF_EACH
        self._attempts: list[_Attempt] = []
        self._doubt: tuple[str, list[Send]] | None = None
        """The commit of the next version whose outcome is not known."""
        self._is_forgotten = False
        """The last version was, by a person."""
        self._left: tuple[str, SharedTransaction, list[Participant]] | None = None
        """The transaction of a run that died, with the run."""
        self._zombies: set[asyncio.Task[None]] = set()

    async def _work(self) -> None:
        async with Admin(self._site.bootstrap, request_timeout_ms=_REQUEST_MS) as admin:
            for number in itertools.count(1):
                if self._is_done:
                    break
                await self._run_until_dead(admin, f"{self.name}-run-{number}")
            self._board.number = 0
            self._fail(self._attempts)
            if self._doubt is not None:
                self._settle(INFO)
            if self._zombies:
                await asyncio.wait(self._zombies)

    # --- A run -------------------------------------------------------------------------------

    async def _run_until_dead(self, admin: Admin, run_id: str) -> None:
        if self._doubt is None and self.done and self._dice.random() < 0.5:
            await self._repeat_last(admin, run_id)
        while not self._is_done:
            await self._pause(self._plan.every_us)
            if self._dice.random() < self._plan.intrudes:
                await self._intrude(admin, run_id)
            ended_by_hand = self._site.ended_by_hand[self.name]
            shared = await self._open(admin, run_id)
            if shared is None:
                continue
            was_quiet = self._site.is_quiet()
            parts = await self._write(shared)
            if parts is None:
                continue
            if self._dice.random() < self._plan.dies:
                self._left = run_id, shared, [_participant(part) for part in parts]
                return
            await self._end(admin, shared, parts, was_quiet=was_quiet, ended_by_hand=ended_by_hand)

    def _version(self, number: int, checkpoint: str = _CHECKPOINT) -> ApplicationVersion:
        return ApplicationVersion(number, self.name, checkpoint)

    async def _repeat_last(self, admin: Admin, run_id: str) -> None:
        """Ask for the last version again, as one does that has died after its commit."""
        self.doing = "asking for the last version"
        while not self._is_done and not self._is_forgotten:
            try:
                shared = await admin.open_shared_transaction(
                    self.name, run_id, self._version(self.done - 1)
                )
            except MillraceError as error:
                self._judge(error)
                await self._pause(self._plan.every_us)
                continue
            if not shared.is_done and not self._may_be_lost():
                raise Violation(f"{self.name}: version {self.done - 1} is not done any more (T24)")
            self._wake_the_last()
            return

    async def _open(self, admin: Admin, run_id: str) -> SharedTransaction | None:
        """Open the next version; None: it is done."""
        self.doing = f"opening version {self.done}"
        version = self._version(self.done)
        # What is in doubt may still be open: no new attempt would begin.
        is_asked_often = self._dice.random() < self._plan.asks_often and self._doubt is None
        while not self._is_done:
            asking = [
                admin.open_shared_transaction(self.name, run_id, version, may_attach=is_asked_often)
                for _ in range(2 if is_asked_often else 1)
            ]
            answers = await asyncio.gather(*asking, return_exceptions=True)
            opened = [answer for answer in answers if isinstance(answer, SharedTransaction)]
            for error in answers:
                if isinstance(error, MillraceError):
                    self._judge(error)
                elif isinstance(error, BaseException):
                    raise error
            if len(opened) < len(answers):
                await self._pause(self._plan.every_us)
                continue
            if opened[0] != opened[-1] and not self._may_be_lost():
                raise Violation(f"{self.name}: two that ask at once are told {opened} (T22)")
            return self._on_opened(opened[0])
        return None

    def _on_opened(self, shared: SharedTransaction) -> SharedTransaction | None:
        """Judge the answer, by which a commit in doubt is known."""
        self._fail(self._attempts)
        self._wake_the_last()
        if self._doubt is not None:
            self._settle(OK if shared.is_done else FAIL)
        elif shared.is_done and not self._may_be_lost():
            raise Violation(f"{self.name}: version {self.done} is done, and nobody has written it")
        return None if shared.is_done else shared

    # --- Its parts ---------------------------------------------------------------------------

    async def _write(self, shared: SharedTransaction) -> list[_Attempt] | None:
        """Have all parts written; None: that takes too long, or the transaction is over."""
        self.doing = f"writing version {self.done}"
        self._board.number = shared.number
        parts = [
            [self._attempt(shared)] for _ in range(1 + self._dice.randrange(self._plan.parts_max))
        ]
        for attempts in parts:
            if self._dice.random() < self._plan.copies:
                attempts.append(self._attempt(shared, is_slow=True))
        ends_at, again_at = self._world.now + _VERSION_US, self._world.now + _ATTEMPT_US
        while self._world.now < ends_at and not self._is_done:
            await asyncio.sleep(_LOOK_US / SECOND)
            written = [[one for one in part if one.participant is not None] for part in parts]
            if all(written):
                return [self._dice.choice(some) for some in written]
            for attempts, some in zip(parts, written, strict=True):
                is_late = self._world.now > again_at
                if not some and (is_late or all(one.is_over for one in attempts)):
                    attempts.append(self._attempt(shared))
            if self._world.now > again_at:
                again_at += _ATTEMPT_US
        return None

    def _attempt(self, shared: SharedTransaction, *, is_slow: bool = False) -> _Attempt:
        dice = self._dice
        sends: list[Send] = []
        for key in dice.sample(list(self._site.keys), 1 + dice.randrange(len(self._site.keys))):
            for _ in range(1 + dice.randrange(self._plan.records_max)):
                sends.append(Send(key, self._next_value))
                self._next_value += 1
        waits = [0, dice.choice((0, 0, 100, 400)) * MILLISECOND]
        if is_slow:
            waits[dice.randrange(2)] = dice.randrange(200, 3_000) * MILLISECOND
        process = f"{self.name}.{next(self._lives)}"
        before_us, within_us = waits
        fails = dice.random() < self._plan.fails
        attempt = _Attempt(process, shared, sends, before_us, within_us, fails)
        self._record(process, INVOKE, "txn", sends=sends)
        self._attempts.append(attempt)
        self._board.waiting.append(attempt)
        return attempt

    def _fail(self, attempts: Sequence[_Attempt]) -> None:
        """Tell that attempts do not count, whatever they still write."""
        for attempt in attempts:
            if not attempt.is_judged:
                attempt.is_judged = True
                self._record(attempt.process, FAIL, "txn", sends=attempt.sends)
        self._attempts = [one for one in self._attempts if not one.is_judged]

    # --- Its end -----------------------------------------------------------------------------

    async def _end(
        self,
        admin: Admin,
        shared: SharedTransaction,
        parts: list[_Attempt],
        *,
        was_quiet: bool,
        ended_by_hand: int,
    ) -> None:
        way, plan = self._dice.random(), self._plan
        lasts, sleeps = way < plan.lasts, plan.lasts <= way < plan.lasts + plan.sleeps
        forgets = self._dice.random() < plan.forgets
        is_forgotten = forgets and await self._forget(admin)
        if lasts:
            self.doing = "waiting for longer than the lease"
            await asyncio.sleep(2.5 * plan.lease_ms / 1000)
        elif sleeps:
            self.doing = "sleeping"
            self._board.number = 0
            await asyncio.sleep(3.5 * plan.lease_ms / 1000)
        outcome = await self._commit(admin, shared, parts)
        self._board.number = 0
        if is_forgotten and outcome == OK and not self._may_be_lost():
            raise Violation(f"{self.name}: a version is forgotten within a transaction (T22)")
        is_judged = was_quiet and self._site.is_quiet() and not self._may_be_lost()
        is_left_alone = ended_by_hand == self._site.ended_by_hand[self.name]
        if is_judged and is_left_alone and lasts and outcome == FAIL:
            raise Violation(f"{self.name}: a transaction ends, and its lease was renewed (T23)")
        if is_judged and sleeps and outcome == OK:
            raise Violation(f"{self.name}: a transaction is open, and nobody renews it (T23)")

    async def _commit(
        self, admin: Admin, shared: SharedTransaction, parts: list[_Attempt]
    ) -> str | None:
        """Commit; return the outcome, None while it is in doubt."""
        self.doing = f"committing version {self.done}"
        process = f"{self.name}#{next(self._lives)}"
        for part in parts:
            part.is_judged = True
            self._record(part.process, INFO, "txn", sends=part.sends, error=f"see {process}")
        # In the order of the log, as the parts were written side by side.
        sends = sorted((send for part in parts for send in part.sends), key=_place)
        self._record(process, INVOKE, "txn", sends=[Send(*send[:2]) for send in sends])
        self._record(process, INVOKE, "end", details="commit")
        self._doubt = process, sends
        self._fail(self._attempts)
        for _ in range(_REPEATS_MAX):
            try:
                await admin.commit_shared_transaction(shared, list(map(_participant, parts)))
            except TransactionAbortedError:
                return self._settle(FAIL)
            except MillraceError as error:
                self._judge(error)
                if self._dice.random() < 0.5:
                    break
                await self._pause(self._plan.every_us)
            else:
                return self._settle(OK)
        if self._dice.random() < 0.5:
            try:
                await admin.abort_shared_transaction(shared)
            except MillraceError as error:  # It is committed, or nobody could be asked.
                if not isinstance(error, InvalidTransactionStateError):
                    self._judge(error)
            else:
                return self._settle(FAIL)
        return None

    def _settle(self, outcome: str) -> str:
        """Tell what became of the commit in doubt."""
        assert self._doubt is not None
        (process, sends), self._doubt = self._doubt, None
        self._record(process, outcome, "txn", sends=sends)
        if outcome == OK:
            self.done += 1
            self._is_forgotten = False
        return outcome

    # --- What must be refused ----------------------------------------------------------------

    async def _intrude(self, admin: Admin, run_id: str) -> None:
        """Write for the application as another query would, or an earlier version (T21)."""
        if not self.done or self._is_forgotten or self._doubt is not None:
            return
        is_other = self.done < 2 or self._dice.random() < 0.5
        number = self.done - self._dice.randrange(2)
        version = self._version(number, "another") if is_other else self._version(self.done - 2)
        try:
            told = await admin.open_shared_transaction(self.name, f"{run_id}-other", version)
        except VersionConflictError:
            return
        except MillraceError as error:
            self._judge(error)
        else:
            if not self._may_be_lost():
                raise Violation(f"{self.name}: {version} is answered with {told} (T21)")

    async def _forget(self, admin: Admin) -> bool:
        """Have the version forgotten, which works only if the transaction is not open any more."""
        try:
            await admin.forget_version(self.name)
        except (
            InvalidTransactionStateError,
            ConcurrentTransactionsError,
            TransactionalIdNotFoundError,
        ):
            return False
        except MillraceError as error:
            self._judge(error)
            self._is_forgotten = True  # Or perhaps not.
            return False
        self._is_forgotten = True
        return True

    def _wake_the_last(self) -> None:
        """Let the run that died go on, as another one has begun."""
        if self._left is not None:
            left, self._left = self._left, None
            task = asyncio.create_task(self._go_on(*left))
            self._zombies.add(task)
            task.add_done_callback(self._zombies.discard)

    async def _go_on(
        self, run_id: str, shared: SharedTransaction, parts: list[Participant]
    ) -> None:
        """Go on as a run that was replaced: all of it is refused (T20)."""
        await self._pause(SECOND)
        async with Admin(self._site.bootstrap, request_timeout_ms=_REQUEST_MS) as admin:
            for act in (
                lambda: admin.commit_shared_transaction(shared, parts),
                lambda: admin.open_shared_transaction(self.name, run_id, self._version(self.done)),
            ):
                with contextlib.suppress(MillraceError):
                    await act()
                    if not self._may_be_lost():
                        raise Violation(f"{self.name}: a run that was replaced goes on (T20)")

    def _judge(self, error: MillraceError) -> None:
        # By its lease, or a commit that came late.
        if isinstance(error, AbortedError | InvalidTransactionStateError):
            return
        if isinstance(error, ProducerFencedError | VersionConflictError) and self._may_be_lost():
            return
        super()._judge(error)


def _place(send: Send) -> tuple[int, int]:
    assert send.offset is not None
    return send.key, send.offset


def _participant(attempt: _Attempt) -> Participant:
    assert attempt.participant is not None
    return attempt.participant
