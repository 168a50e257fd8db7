"""Administration without an event loop."""

from collections.abc import Sequence
from typing import Unpack

from millrace.client._admin.admin import Admin
from millrace.client._settings import AdminSettings
from millrace.client._sync.client import SyncClient, blocking


class SyncAdmin(SyncClient[Admin]):
    """Creates, describes and changes topics, and looks after the cluster.

        with SyncAdmin("localhost:7092") as admin:
            admin.create_topic("orders", partitions=4)

    The methods are those of `Admin`.
    """

    def __init__(self, bootstrap: str | Sequence[str], **settings: Unpack[AdminSettings]) -> None:
        super().__init__(lambda: Admin(bootstrap, **settings))

    create_topic = blocking(Admin.create_topic)
    alter_topic = blocking(Admin.alter_topic)
    delete_topic = blocking(Admin.delete_topic)
    list_deleted_topics = blocking(Admin.list_deleted_topics)
    undelete_topic = blocking(Admin.undelete_topic)
    purge_topic = blocking(Admin.purge_topic)
    list_topics = blocking(Admin.list_topics)
    describe_topics = blocking(Admin.describe_topics)
    describe_topic = blocking(Admin.describe_topic)
    describe_cluster = blocking(Admin.describe_cluster)
    describe_health = blocking(Admin.describe_health)
    drain_broker = blocking(Admin.drain_broker)
    undrain_broker = blocking(Admin.undrain_broker)
    unregister_broker = blocking(Admin.unregister_broker)
    reassign_partitions = blocking(Admin.reassign_partitions)
    elect_leaders = blocking(Admin.elect_leaders)
    list_offsets = blocking(Admin.list_offsets)
    delete_records = blocking(Admin.delete_records)
    wait_for_news = blocking(Admin.wait_for_news)
    find_epoch_ends = blocking(Admin.find_epoch_ends)
    describe_logs = blocking(Admin.describe_logs)
    describe_damage = blocking(Admin.describe_damage)
    describe_broker_configs = blocking(Admin.describe_broker_configs)
    set_quota = blocking(Admin.set_quota)
    delete_quota = blocking(Admin.delete_quota)
    list_quotas = blocking(Admin.list_quotas)
    describe_quotas = blocking(Admin.describe_quotas)
    resolve_initial = blocking(Admin.resolve_initial)
    commit_positions = blocking(Admin.commit_positions)
    fetch_positions = blocking(Admin.fetch_positions)
    list_groups = blocking(Admin.list_groups)
    describe_group = blocking(Admin.describe_group)
    describe_lags = blocking(Admin.describe_lags)
    forget_topics = blocking(Admin.forget_topics)
    delete_group = blocking(Admin.delete_group)
    list_transactions = blocking(Admin.list_transactions)
    describe_transaction = blocking(Admin.describe_transaction)
    abort_transaction = blocking(Admin.abort_transaction)
    list_open_transactions = blocking(Admin.list_open_transactions)
    find_hanging_transactions = blocking(Admin.find_hanging_transactions)
    abort_open_transaction = blocking(Admin.abort_open_transaction)
    open_shared_transaction = blocking(Admin.open_shared_transaction)
    commit_shared_transaction = blocking(Admin.commit_shared_transaction)
    abort_shared_transaction = blocking(Admin.abort_shared_transaction)
    renew_shared_transaction = blocking(Admin.renew_shared_transaction)
    forget_version = blocking(Admin.forget_version)

    def close(self) -> None:
        """Close the connections; closing twice is harmless."""
        self._thread.close(self._client.close(), self._client._close_timeout_ms, str)
