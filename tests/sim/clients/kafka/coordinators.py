"""How a simulated client of Kafka finds the coordinator of its group or transactions, and asks."""

from typing import Any, Final

from kafka.protocol.metadata import FindCoordinatorRequest
from tests.sim.clients.kafka.connections import NO_ERROR, KafkaBrokers, error_of

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import ConnectionFailedError

OF_GROUP: Final = 0
OF_TRANSACTIONS: Final = 1
_FIRST_WITH_MANY: Final = 4
ELSEWHERE: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
"""With these a client finds its coordinator, and asks again."""


class KafkaCoordinator:
    """The coordinator of one name.

    Args:
        brokers: that the client knows.
        name: of the group, or the transactional id.
        kind: which of both.
    """

    def __init__(self, brokers: KafkaBrokers, name: str, kind: int) -> None:
        self._brokers = brokers
        self._name = name
        self._kind = kind
        self._broker_id = -1

    async def ask(
        self, key: int, version: int, message: Any, patience_s: float | None = None
    ) -> Any:
        """Return what the coordinator answers.

        Raises:
            NotAnsweredError: it did not.
            MillraceError: nobody knows it.
        """
        if self._broker_id < 0:
            await self._find()
        try:
            connection = await self._brokers.connection(self._broker_id, "coordinator")
            found = patience_s or self._brokers.patience_s
            return await connection.ask(key, version, message, found)
        except ConnectionFailedError:
            self.forget()
            raise

    def forget(self) -> None:
        """Find it anew: it may be another broker."""
        self._broker_id = -1

    async def _find(self) -> None:
        version = self._brokers.dice.choice((1, 3, 4, 6))
        has_many = version >= _FIRST_WITH_MANY
        asked = FindCoordinatorRequest(
            version=version,
            key="" if has_many else self._name,
            key_type=self._kind,
            coordinator_keys=[self._name] if has_many else [],
        )
        answer = await self._brokers.ask_any(ApiKey.FIND_COORDINATOR, version, asked)
        found = answer.coordinators[0] if has_many else answer
        if found.error_code != NO_ERROR:
            raise error_of(found.error_code, f"the coordinator of {self._name}")
        self._brokers.learn(found.node_id, f"{found.host}:{found.port}")
        self._broker_id = found.node_id
