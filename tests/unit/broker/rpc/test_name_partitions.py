"""Internal topics are made for the first name, where every broker knows them."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.cluster import Cluster, registration

from millrace.broker.rpc.name_partitions import POSITIONS, TRANSACTIONS, KeptNames, NamePartitions
from millrace.core.errors import MalformedRequestError, UnsupportedFeatureError
from millrace.core.ids import BrokerId
from millrace.core.metadata.broker_levels import COMPACTION
from millrace.core.metadata.model import Listener


class EarlierController:
    """A controller of the last release: it does not know the request."""

    async def request_for_client(self, *_: object) -> None:
        raise MalformedRequestError("the request is none that this controller knows")


@pytest.mark.parametrize(
    ("kept", "error"),
    [(TRANSACTIONS, UnsupportedFeatureError), (POSITIONS, MalformedRequestError)],
)
def test_who_has_an_earlier_controller_is_told_that_transactions_wait_for_the_last_upgrade(
    kept: KeptNames, error: type[Exception]
) -> None:
    """T16."""
    cluster = Cluster()
    cluster.driver.kill(BrokerId(1))
    cluster.driver.levels[BrokerId(1)] = COMPACTION
    cluster.driver.start_broker(replace(registration(1, "2"), level=COMPACTION))
    partitions: Any = SimpleNamespace(image=cluster.driver.image)
    channel: Any = EarlierController()
    names = NamePartitions(partitions, channel, Listener.CLIENTS, kept)
    caller: Any = None
    with pytest.raises(error):
        asyncio.run(names.find_or_make("default/x", caller))
