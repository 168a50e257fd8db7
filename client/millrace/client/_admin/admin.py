"""Administration: each part has a module of its own, and `Admin` is all of them."""

from collections.abc import Sequence
from typing import Unpack

from millrace.client._admin.groups import GroupAdministration
from millrace.client._admin.health import HealthAdministration
from millrace.client._admin.offsets import OffsetAdministration
from millrace.client._admin.quotas import QuotaAdministration
from millrace.client._admin.shared_transactions import SharedTransactionAdministration
from millrace.client._admin.topics import TopicAdministration
from millrace.client._admin.transactions import TransactionAdministration
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.positions import KeptPositions
from millrace.client._settings import AdminConfig, AdminSettings, documents
from millrace.core.settings import parse


@documents(AdminConfig)
class Admin(
    TopicAdministration,
    HealthAdministration,
    OffsetAdministration,
    QuotaAdministration,
    GroupAdministration,
    TransactionAdministration,
    SharedTransactionAdministration,
):
    """Creates, describes and changes topics, and looks after the cluster, from an event loop.

        async with Admin("localhost:7092") as admin:
            await admin.create_topic("orders", partitions=4, config={"retention.ms": "86400000"})
            print(await admin.list_topics())

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds.
    """

    def __init__(self, bootstrap: str | Sequence[str], **settings: Unpack[AdminSettings]) -> None:
        config = parse(AdminConfig, settings)
        self._close_timeout_ms = config.close_timeout_ms
        self._cluster = config.new_cluster(bootstrap)
        self._coordinators = Coordinators(self._cluster)
        self._transaction_coordinators = Coordinators(self._cluster)
        self._positions = KeptPositions(self._cluster, self._coordinators)
