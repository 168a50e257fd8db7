"""A leader asks the coordinator of a transaction, as far as it knows where that is."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.coordinator.transaction_joins import TransactionJoins, Writer
from millrace.core.errors import CoordinatorLoadInProgressError
from millrace.core.ids import ProducerEpoch, ProducerId


@pytest.mark.parametrize("image", [None, SimpleNamespace(topics={})])
async def test_a_leader_that_has_not_heard_of_transactions_refuses_for_the_moment(
    image: Any,
) -> None:
    """The first transaction of a cluster is as quick as the metadata."""
    partitions: Any = SimpleNamespace(image=image)
    peers: Any = None
    failures: list[BaseException] = []
    joins = TransactionJoins(partitions, peers, failures.append)
    with pytest.raises(CoordinatorLoadInProgressError):
        await joins.ask_for_group(Writer("copy", ProducerId(1), ProducerEpoch(0)), "g")
    await joins.close()
    assert not failures
