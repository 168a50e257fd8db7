"""Transactions of Kafka's clients, and ids of producers, while this broker cannot answer."""

from types import SimpleNamespace
from typing import Any, Final

import pytest
from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.coordinators.transactions import TransactionRequests
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import BrokerShuttingDownError, ControllerNotAvailableError, MillraceError
from millrace.core.metadata.model import Listener
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import produce_pb2

NO_CONTROLLER: Final = ControllerNotAvailableError("there is no controller")


class Local:
    """Millrace's services, which give out no ids of producers."""

    def __init__(self, error: MillraceError) -> None:
        self._error = error

    async def call(self, method: str, request: Any, caller: object) -> Any:
        assert method == "InitProducerId"
        return produce_pb2.InitProducerIdResponse(error=error_to_wire(self._error, is_write=True))


async def ask(
    key: ApiKey, version: int, message: Any, unready: int = 0, error: MillraceError = NO_CONTROLLER
) -> Any:
    """Return the answer of a broker that leads partitions of `__transactions`.

    Args:
        key: of the request.
        version: of its format.
        message: it.
        unready: partitions that are not loaded; the others are empty.
        error: why it gives out no ids of producers.
    """
    runtime = SimpleNamespace(unready=lambda: unready, machines=lambda: iter(()))
    broker = SimpleNamespace(
        transactions=SimpleNamespace(runtime=runtime), partitions=None, channel=None
    )
    calls = SimpleNamespace(listener=Listener.CLIENTS)
    parts: Any = SimpleNamespace(
        broker=broker, calls=calls, local=Local(error), names=Names("default")
    )
    served = TransactionRequests(parts).served()[key]
    asked = type(message).decode(message.encode(version=version), version=version)
    connection = KafkaConnectionState(CALLER.address)
    found = await served.handler(Request(key, version, "me", asked, CALLER, connection))
    return type(found).decode(found.encode(version=version), version=version)


@pytest.mark.parametrize("version", [0, 1])
async def test_transactions_are_not_listed_before_all_of_them_are_loaded(version: int) -> None:
    message = ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
    for unready, code in ((0, 0), (1, Code.COORDINATOR_LOAD_IN_PROGRESS)):
        answer = await ask(ApiKey.LIST_TRANSACTIONS, version, message, unready)
        assert (answer.error_code, answer.transaction_states) == (code, [])


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NO_CONTROLLER, Code.COORDINATOR_NOT_AVAILABLE),
        (BrokerShuttingDownError("this broker stops"), Code.NOT_COORDINATOR),
    ],
)
async def test_a_producer_without_a_transactional_id_has_no_coordinator_to_look_for(
    version: int, error: MillraceError, code: int
) -> None:
    """As in Kafka: Java's producer would look for the coordinator of no id."""
    message = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    )
    answer = await ask(ApiKey.INIT_PRODUCER_ID, version, message, error=error)
    assert answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    message.transactional_id, message.transaction_timeout_ms = "t", 1000
    answer = await ask(ApiKey.INIT_PRODUCER_ID, version, message, error=error)
    assert answer.error_code == code
