"""Transactions of Kafka's clients, while this broker cannot answer."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import ListTransactionsRequest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.coordinators.transactions import TransactionRequests
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import Code
from millrace.core.metadata.model import Listener


async def ask(key: ApiKey, version: int, message: Any, unready: int = 0) -> Any:
    """Return the answer of a broker that leads partitions of `__transactions`.

    Args:
        key: of the request.
        version: of its format.
        message: it.
        unready: partitions that are not loaded; the others are empty.
    """
    runtime = SimpleNamespace(unready=lambda: unready, machines=lambda: iter(()))
    broker = SimpleNamespace(
        transactions=SimpleNamespace(runtime=runtime), partitions=None, channel=None
    )
    calls = SimpleNamespace(listener=Listener.CLIENTS)
    parts: Any = SimpleNamespace(broker=broker, calls=calls, names=Names("default"))
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
