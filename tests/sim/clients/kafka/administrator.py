"""A simulated administrator that speaks Kafka's protocol: what those of all kinds share.

It makes one call after another, in any version that brokers list, as Kafka's tools do, while
brokers may fail. It judges every answer: each can be read, none tells of an internal error, and
what is wrong in a request is refused as Kafka refuses it. What a class of calls promises is judged
where it is made (`topic_administrator`, `group_administrator`).

A change of which nobody knows whether it was made is judged no more: the administrator goes on with
another topic or group, as the request may still arrive.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tests.sim.clients.kafka.connections import NO_ERROR, KafkaBrokers, error_of
from tests.sim.clients.readers_and_writers import Client, Job
from tests.sim.world import Violation

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.core.errors import FencedError, MillraceError

Call = Callable[[], Awaitable[None]]
_REQUEST_S: Final = 5.0


class KafkaAdministrator(Client):
    """Makes calls.

    Args:
        may_be_lost: whether positions and transactions may be lost, by an unclean election.

    Attributes:
        done: how many calls were answered.
        doing: what it does now, for people.
        least_in_quiet: how many are answered while all is quiet.
        calls_of_each: after this many calls it connects again.
    """

    least_in_quiet = 5
    calls_of_each = 30

    def __init__(self, job: Job, *, may_be_lost: Callable[[], bool]) -> None:
        super().__init__(job)
        self.done = 0
        self.doing = "beginning"
        self._may_be_lost = may_be_lost
        self._brokers = self._connected()
        self._listed: dict[int, range] = {}

    def _calls(self) -> Sequence[Call]:
        """Return what it does, each as often as it is there."""
        raise NotImplementedError

    async def _work(self) -> None:
        calls = self._calls()
        while not self._is_done:
            await self._make_calls(calls)
            self._connect_anew()

    def _connect_anew(self) -> None:
        self._brokers.close()
        self._brokers = self._connected()

    async def _make_calls(self, calls: Sequence[Call]) -> None:
        for _ in range(self.calls_of_each):
            if self._is_done:
                return
            call = self._dice.choice(calls) if self._listed else self._list_versions
            self.doing = getattr(call, "__name__", "")
            try:
                await call()
            except MillraceError as error:
                self._judge(error)
            else:
                self.done += 1
            await self._pause(self._every_us)

    def _connected(self) -> KafkaBrokers:
        return KafkaBrokers(self._machine.kafka, self.name, self._dice, _REQUEST_S)

    async def _list_versions(self) -> None:
        asked = codec.request_class(ApiKey.API_VERSIONS)(
            version=3, client_software_name="tools", client_software_version="1"
        )
        answer = await self._brokers.ask_any(ApiKey.API_VERSIONS, 3, asked)
        self._check(answer.error_code, "versions")
        self._listed = {
            listed.api_key: range(listed.min_version, listed.max_version + 1)
            for listed in answer.api_keys
        }

    # --- Requests ----------------------------------------------------------------------------

    def _version(self, key: int, least: int = 0, most: int = 99) -> int:
        """Return any version of a request that brokers list."""
        return self._dice.choice([each for each in self._listed[key] if least <= each <= most])

    async def _ask(
        self, key: int, /, *, least: int = 0, most: int = 99, at: int | None = None, **fields: Any
    ) -> Any:
        """Return an answer.

        Args:
            key: of the request.
            least, most: the versions that it can have.
            at: the broker that is asked; None: any.
            fields: of the request.

        Raises:
            ConnectionFailedError: there is none.
        """
        version = self._version(key, least, most)
        message = codec.request_class(key)(version=version, **fields)
        if at is None:
            return await self._brokers.ask_any(key, version, message)
        return await self._brokers.ask(at, key, version, message)

    async def _living(self) -> list[int]:
        """Return the brokers that are told; from then on they can be asked.

        Raises:
            MillraceError: nobody tells.
        """
        answer = await self._ask(
            ApiKey.METADATA,
            least=9,
            topics=[],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=self._dice.random() < 0.5,
        )
        self._check(answer.error_code or NO_ERROR, "metadata")
        for broker in answer.brokers:
            self._brokers.learn(broker.node_id, f"{broker.host}:{broker.port}")
        found = [broker.node_id for broker in answer.brokers]
        if len(found) > len({*found}):
            raise self._wrong(f"brokers are told twice: {found}")
        return found

    # --- Judgement ---------------------------------------------------------------------------

    def _wrong(self, what: str) -> Violation:
        return Violation(f"{self.name}, {self.doing}: {what}")

    def _check(self, code: int, about: str, *also: int) -> int:
        """Return a code that means success, or that is expected, too.

        Raises:
            MillraceError: it is another one.
        """
        if code == NO_ERROR or code in also:
            return code
        raise error_of(code, about)

    def _refused(self, code: int, about: str, *expected: int) -> None:
        """Check that a request was refused as it has to be.

        Raises:
            MillraceError: it could not be answered now.
        """
        if code in expected:
            return
        if code == NO_ERROR:
            raise self._wrong(f"{about} is not refused")
        error = error_of(code, about)
        self._judge(error)
        raise error

    def _judge(self, error: MillraceError) -> None:
        if isinstance(error, FencedError) and self._may_be_lost():
            return
        super()._judge(error)


def kind_of(key: int, name: str) -> Any:
    """Return the class of an entry of a request."""
    return getattr(codec.request_class(key), name)
