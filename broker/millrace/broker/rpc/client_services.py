"""The services of a listener of clients: all listeners have the same ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.broker.controller.channel import ControllerChannel
from millrace.broker.controller.producer_ids import ProducerIds
from millrace.broker.coordinator.groups import Groups
from millrace.broker.coordinator.staged_commits import StagedCommits
from millrace.broker.coordinator.transaction_finder import TransactionFinder
from millrace.broker.coordinator.transaction_joins import TransactionJoins
from millrace.broker.coordinator.transactions import Transactions
from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.client_listener import ClientListener, Service, StreamingService
from millrace.broker.rpc.cluster import ClusterService
from millrace.broker.rpc.converted_batches import ColumnBatches
from millrace.broker.rpc.fetch import FetchService
from millrace.broker.rpc.groups import GroupsService
from millrace.broker.rpc.joining import Joining
from millrace.broker.rpc.memory import MemoryPool
from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.broker.rpc.positions import PositionsService
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.shared_transactions import SharedTransactionsService
from millrace.broker.rpc.transactions import TransactionsService
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import BrokerConfig
from millrace.core.ids import BrokerId
from millrace.runtime.mailbox import Worker
from millrace.runtime.turns import Turns


@dataclass(frozen=True, slots=True)
class MadeServices:
    """The services of one listener.

    Attributes:
        unary: those whose calls have one request and one response.
        streaming: the others.
        produce: of these, what the caller has to sweep.
    """

    unary: Sequence[Service]
    streaming: Sequence[StreamingService]
    produce: ProduceService


@dataclass(kw_only=True, slots=True)
class ClientServices:
    """Makes them from the parts of the broker."""

    config: BrokerConfig
    broker_id: BrokerId
    channel: ControllerChannel
    partitions: Partitions
    reader: LogReader
    groups: Groups
    staged: StagedCommits
    transactions: Transactions
    joins: TransactionJoins
    finder: TransactionFinder
    producer_ids: ProducerIds
    checkers: Sequence[Worker]
    memory: MemoryPool
    early: EarlyRequests
    metrics: BrokerMetrics
    quotas: Quotas
    turns: Turns

    async def serve(
        self, clients: ClientListener, drpc_address: Callable[[], str]
    ) -> ProduceService:
        """Answer the clients of a listener from now on; return what the caller has to sweep."""
        made = self.make(clients.calls, drpc_address)
        await clients.serve(made.unary, made.streaming)
        return made.produce

    def make(self, calls: Calls, drpc_address: Callable[[], str] = lambda: "") -> MadeServices:
        """Return the services of a listener.

        Args:
            calls: of the listener.
            drpc_address: returns where its clients connect by DRPC; empty: nowhere.
        """
        limits, partitions = self.config.limits, self.partitions
        ids = NamePartitions(partitions, self.channel, calls.listener, TRANSACTIONS)
        transactions = TransactionsService(
            transactions=self.transactions,
            names=ids,
            partitions=partitions,
            finder=self.finder,
            calls=calls,
        )
        shared = SharedTransactionsService(
            transactions=self.transactions,
            names=ids,
            lease_ms=self.config.transactions.lease_ms,
            calls=calls,
        )
        produce = ProduceService(
            partitions=partitions,
            producer_ids=self.producer_ids,
            begin_transactional=transactions.begin,
            checkers=self.checkers,
            memory=self.memory,
            early=self.early,
            joining=Joining(self.joins),
            limits=limits,
            metrics=self.metrics,
            quotas=self.quotas,
            calls=calls,
            turns=self.turns,
        )
        fetch = FetchService(
            partitions=partitions,
            reader=self.reader,
            early=self.early,
            turns=self.turns,
            limits=limits,
            metrics=self.metrics,
            quotas=self.quotas,
            columns=ColumnBatches(self.checkers, self.config.kafka.converted_bytes_max),
            calls=calls,
        )
        cluster = ClusterService(
            broker_id=self.broker_id,
            channel=self.channel,
            partitions=partitions,
            config=self.config,
            turns=self.turns,
            quotas=self.quotas,
            calls=calls,
            drpc_address=drpc_address,
        )
        names = NamePartitions(partitions, self.channel, calls.listener)
        positions = PositionsService(
            groups=self.groups,
            staged=self.staged,
            names=names,
            partitions=partitions,
            turns=self.turns,
            calls=calls,
        )
        groups = GroupsService(groups=self.groups, names=names, calls=calls)
        unary: list[Service] = [cluster, positions, groups, transactions, shared]
        return MadeServices(unary, [produce, fetch], produce)
