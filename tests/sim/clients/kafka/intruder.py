"""A client that tries by Kafka's protocol what it may not do, as one caller after another.

It is nobody, somebody with a token that is none, somebody whom no rule names, one who may only read
or only write, and one whose rights change. Nobody gets an answer without being known. Who is known
is refused everything that the rules do not allow, at each leader, and whether there is such a topic
or not; what they allow is not refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.sim.clients.kafka.administrator import KafkaAdministrator
from tests.sim.clients.kafka.connections import NO_ERROR
from tests.sim.clients.readers_and_writers import Job
from tests.sim.machines.rules_of_brokers import (
    CHANGING,
    IMPOSTOR,
    READER,
    STRANGER,
    WORKER,
    WRITER,
    Rights,
)

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import AuthenticationFailedError, ConnectionFailedError

NOBODY: Final = "nobody"
NEVER: Final = "never"
"""The name of a topic, a group and a transaction that there never are."""
NONE: Final = frozenset[str]()
DESCRIBES: Final = frozenset({READER, WRITER})
"""Who may see the topic."""
_UNKNOWN: Final = frozenset({NOBODY, IMPOSTOR})
DENIED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class Intruder(KafkaAdministrator):
    """Somebody who tries what it may not.

    Args:
        rights: of callers.
        reads: returns whether `CHANGING` may read; None: that has changed lately.
    """

    calls_of_each = 8

    def __init__(
        self,
        job: Job,
        *,
        may_be_lost: Callable[[], bool],
        rights: Rights,
        reads: Callable[[], bool | None],
    ) -> None:
        super().__init__(job, may_be_lost=may_be_lost)
        self._rights = rights
        self._reads = reads
        self._is = READER  # So that it learns the versions of requests.
        self._machine.login = rights.login_of(READER)

    def _connect_anew(self) -> None:
        super()._connect_anew()
        callers = (NOBODY, IMPOSTOR, STRANGER, READER, WRITER, CHANGING, CHANGING)
        self._is = self._dice.choice(callers)
        login_of = self._rights.login_of
        if self._is == IMPOSTOR:  # It takes a name that there is.
            self._machine.login = login_of(IMPOSTOR)._replace(name=login_of(WORKER).name)
        else:
            self._machine.login = None if self._is == NOBODY else login_of(self._is)

    async def _try(self, key: int, /, **fields: Any) -> Any:
        """Return the answer to a caller that is logged in; None: the caller is not, and gets none.

        Raises:
            MillraceError: a caller that is logged in gets no answer.
        """
        try:
            answer = await self._ask(key, **fields)
        except AuthenticationFailedError as error:
            if self._is not in _UNKNOWN:
                raise self._wrong(f"{self._is} may not log in: {error}") from error
            return None
        except ConnectionFailedError:
            if self._is not in _UNKNOWN:
                raise
            return None
        if self._is in _UNKNOWN:
            raise self._wrong(f"{self._is} is answered: {answer}")
        return answer

    def _judge_right(self, code: int, about: str, allowed: frozenset[str] = NONE) -> None:
        """Check that somebody is refused, or not, as the rules say.

        Args:
            code: of the answer.
            about: what was tried.
            allowed: who may; `CHANGING` may what `READER` may, at its times.
        """
        is_allowed: bool | None = self._is in allowed
        if self._is == CHANGING:
            is_allowed = self._reads() if READER in allowed else False
        if is_allowed is None:
            return
        if not is_allowed:
            self._refused(code, f"{about} by {self._is}", *DENIED)
        elif code in DENIED:
            raise self._wrong(f"{self._is} is refused {about}")
        else:
            self._check(code, about)

    async def _attempt(
        self,
        key: int,
        codes: Callable[[Any], Sequence[int]],
        allowed: frozenset[str] = NONE,
        /,
        **fields: Any,
    ) -> Any:
        """Try something, and judge the codes of the answer; return it, if there is one."""
        answer = await self._try(key, **fields)
        if answer is not None:
            found = codes(answer)
            if not found:
                raise self._wrong(f"nothing is answered: {answer}")
            for code in found:
                self._judge_right(code or NO_ERROR, ApiKey(key).name, allowed)
        return answer
