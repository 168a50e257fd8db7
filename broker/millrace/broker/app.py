"""One broker process, put together: opened, served and closed in the order that safety asks for.

Start: bind the ports, take part in the election of the controller, open a session with the
controller, open the log directories (lock, recovery), register, open the partitions, and only then
answer. Stop, the other way round: hand over leaderships, finish the calls in flight, stop the
append threads, close every log and leave the clean-shutdown markers, and give the lease back last.
Each part registers its end when it starts, so that a failed start is undone in order, too.

`upkeep.duties` has the background tasks, and what ends the process.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from millrace.broker.address import Address
from millrace.broker.controller.broker_lifecycle import BrokerLifecycle
from millrace.broker.controller.channel import ControllerChannel
from millrace.broker.controller.initial_brokers import InitialBrokers
from millrace.broker.controller.older_copy import with_command
from millrace.broker.controller.producer_ids import ProducerIds
from millrace.broker.controller.shell import ControllerShell
from millrace.broker.coordination.store import CoordinationStore
from millrace.broker.coordinator.coordinators import CoordinatorLimits
from millrace.broker.coordinator.group_lags import METHOD as DESCRIBE_LAGS
from millrace.broker.coordinator.group_lags import GroupLags
from millrace.broker.coordinator.groups import Groups
from millrace.broker.coordinator.marker_delivery import METHOD as WRITE_MARKERS
from millrace.broker.coordinator.staged_commits import StagedCommits
from millrace.broker.coordinator.transaction_finder import METHOD as FIND
from millrace.broker.coordinator.transaction_finder import TransactionFinder
from millrace.broker.coordinator.transaction_joins import METHOD as JOIN
from millrace.broker.coordinator.transaction_joins import TransactionJoins
from millrace.broker.coordinator.transactions import Transactions
from millrace.broker.guard.access_files import OpenAccess, open_access
from millrace.broker.kafka.opening import open_kafka
from millrace.broker.peer_connection import PeerConnections
from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.fetcher import ReplicaFetcher
from millrace.broker.replica.log_directories import LogDirectories
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import Peers
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.audit import AuditLog
from millrace.broker.rpc.client_services import ClientServices
from millrace.broker.rpc.controller import BrokerSessions, ControllerService
from millrace.broker.rpc.fetch import ReplicaService
from millrace.broker.rpc.listeners import Addresses, Listeners, ReplicaListener
from millrace.broker.rpc.markers import MarkerWriter
from millrace.broker.rpc.memory import MemoryPool
from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.registration import registration_of
from millrace.broker.rpc.transactions import JoinAnswers
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.telemetry.page import serve_metrics
from millrace.broker.upkeep.cleaners import Cleaners
from millrace.broker.upkeep.descriptors import connections_allowed
from millrace.broker.upkeep.duties import Duties
from millrace.broker.upkeep.housekeeping import Housekeeping
from millrace.broker.upkeep.reluctance import ReluctanceWatch
from millrace.broker.upkeep.tier_movers import TierMovers
from millrace.core.broker_config import BrokerConfig
from millrace.core.errors import InvalidConfigError
from millrace.core.ids import NO_BROKER, BrokerId
from millrace.core.listeners_config import ListenerProtocol
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataChanges
from millrace.core.metadata.model import BrokerLife, Listener
from millrace.core.metadata.objects.cache import MetadataCache
from millrace.runtime.mailbox import Mailbox, Worker
from millrace.runtime.turns import Turns


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Where a broker can be reached once it is ready.

    Attributes:
        address: `host:port` that clients connect to.
        outside_address: likewise, those of the outside listener; empty when there is none, or it is
            not known yet.
        drpc_address: likewise, by DRPC; empty when there is no such listener.
        tls_address: likewise, by TLS and gRPC.
        kafka_address: likewise, of clients of Kafka.
        replica_address: `host:port` that the cluster's other brokers connect to.
        metrics_address: `host:port` of the metrics page; empty when there is none.
    """

    cluster_id: str
    broker_id: BrokerId
    address: str
    outside_address: str
    drpc_address: str
    tls_address: str
    kafka_address: str
    replica_address: str
    metrics_address: str


class Broker:
    """Starts the parts of a broker; `endings` ends them.

    Args:
        duties: run, and watched, by the caller.
        endings: end each part, the last one first; the caller's parts, too.
        files: where its log directories are.
        open_store: opens the coordination store; blocks.

    Attributes:
        controller: takes part in the election; None before that has begun.
        life: of this broker, once it is registered.
        partitions: its replicas, likewise.
    """

    def __init__(
        self,
        config: BrokerConfig,
        duties: Duties,
        endings: AsyncExitStack,
        *,
        files: FileSystem,
        open_store: Callable[[], CoordinationStore],
    ) -> None:
        self._config = config
        self._duties = duties
        self._endings = endings
        self._open_store = open_store
        connections = connections_allowed(
            config.limits.connections_max,
            config.storage.file_handles_max,
            listeners=len(config.listeners.entries),
        )
        self._listener_limits = replace(config.limits, connections_max=connections)
        self._metrics = BrokerMetrics(config.metrics.topics_max, config.cluster)
        self._audit = AuditLog(config.logging.audit_lines_max)
        self._refusals = Refusals(self._metrics, self._audit)
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._turns = Turns()
        self._memory = memory = MemoryPool(
            config.limits.request_memory_bytes_max,
            config.limits.connection_request_memory_bytes_max,
        )
        self._metrics.request_memory_bytes.set_function(lambda: memory.used)
        self._metrics.request_memory_max_bytes.set(memory.bytes_max)
        self._metrics.arrow_memory_bytes.set_function(pa.total_allocated_bytes)
        self._early = EarlyRequests()
        self._quotas = Quotas(config.quotas, self._metrics.quotas)
        self._access: OpenAccess | None = None
        self._checkers = [
            Worker(f"check-{number}", self._mailbox) for number in range(config.threads.check)
        ]
        self._reader = LogReader(
            self._mailbox,
            threads=config.threads.read,
            buffer_bytes=_largest_answer(config),
        )
        endings.callback(self._reader.close)
        for checker in self._checkers:
            endings.callback(checker.close)
        self._directories = LogDirectories(
            files, config.log_directories, config.storage, self._reader, duties.fail
        )
        self.controller: ControllerShell | None = None
        self.partitions: Partitions | None = None
        self.life: BrokerLife | None = None
        self._segment_duties: list[Cleaners | TierMovers] = []

    async def start(self) -> BrokerAddress:
        """Start everything; return once clients can connect.

        Raises:
            MillraceError: the start failed.
        """
        show = self._metrics.show_access_file
        self._access = await asyncio.to_thread(open_access, self._config, show)
        listeners = self._listen()
        self._peer_connections = PeerConnections.of(self._config)
        metrics_address = _serve_metrics(self._config, self._metrics, listeners, self._endings)
        cache = MetadataCache(self._directories.cluster_id, self._directories.seen)
        controller = await self._take_part_in_elections(listeners.replica, cache)
        self._endings.push_async_callback(self._close_logs)
        self._endings.push_async_callback(self._close_segment_duties)
        self._endings.push_async_callback(self._duties.end)
        channel = await self._open_channel(controller, cache)
        addresses = listeners.follow_addresses()
        await self._open_directories(channel)
        broker = await self._register(channel, listeners)
        partitions = self.partitions = self._make_partitions(broker, channel)
        peers = Peers(broker.broker_id, partitions, self._peer_connections)
        self._endings.push_async_callback(peers.close)
        groups = self._make_groups(partitions)
        producer_ids = ProducerIds(channel)
        transactions = self._make_transactions(partitions, peers, producer_ids)
        joins = TransactionJoins(partitions, peers, self._duties.fail)
        self._endings.push_async_callback(joins.close)
        answers = JoinAnswers(
            transactions, NamePartitions(partitions, channel, Listener.BROKERS, TRANSACTIONS)
        )
        peers.serve_here(JOIN, answers.join)
        peers.serve_here(FIND, answers.find)
        staged = StagedCommits(groups, joins, partitions)
        markers = MarkerWriter(partitions, staged)
        peers.serve_here(WRITE_MARKERS, markers.write)
        followers = self._replicate(
            broker, channel, partitions, listeners.replica, markers=markers, joins=answers
        )
        self._endings.push_async_callback(listeners.stop_clients)
        lifecycle = self._make_lifecycle(channel, broker, partitions, addresses)
        self._endings.push_async_callback(listeners.report_stopping)
        housekeeping = self._observe(partitions, controller)
        await self._take_up_partitions(channel, lifecycle, partitions)
        services = ClientServices(
            config=self._config,
            broker_id=broker.broker_id,
            channel=channel,
            partitions=partitions,
            reader=self._reader,
            groups=groups,
            staged=staged,
            transactions=transactions,
            joins=joins,
            finder=TransactionFinder(partitions, peers),
            producer_ids=producer_ids,
            checkers=self._checkers,
            memory=self._memory,
            early=self._early,
            metrics=self._metrics,
            quotas=self._quotas,
            turns=self._turns,
        )
        for listener in listeners.of_clients:
            drpc_address = partial(addresses.of, ListenerProtocol.DRPC, listener.calls.listener)
            produce = await services.serve(listener, drpc_address)
            self._duties.begin(produce.sweep())
        for kafka in self._kafka:
            own = partial(addresses.of, ListenerProtocol.KAFKA, kafka.calls.listener)
            self._duties.begin((await kafka.answer(services, own)).sweep())
        self._begin_upkeep(housekeeping, partitions, groups, peers, followers)
        self._duties.begin(channel.remember())
        controller.on_serving()
        return _address(channel, broker, listeners, addresses, metrics_address)

    def _listen(self) -> Listeners:
        listeners = Listeners(
            self._config,
            self._listener_limits,
            metrics=self._metrics,
            refusals=self._refusals,
            turns=self._turns,
            quotas=self._quotas,
            guard=None if self._access is None else self._access.guard,
            begin=self._duties.begin,
        )
        self._kafka = open_kafka(self._config, listeners)
        return listeners

    async def _take_part_in_elections(
        self, listener: ReplicaListener, cache: MetadataCache
    ) -> ControllerShell:
        config, sessions = self._config, BrokerSessions()
        store = await asyncio.to_thread(self._open_store)
        controller = self.controller = ControllerShell(
            config.cluster,
            store,
            config.coordination.lease_times,
            name=config.node.name,
            address=str(listener.address),
            tls_address=listener.tls_address,
            observer=sessions,
            known_cluster_id=self._directories.cluster_id,
            seen=self._directories.seen,
            seen_here=lambda: cache.seen,
            keep_seen_elsewhere=self._directories.keep_seen_elsewhere,
            on_failure=self._duties.fail,
        )
        self._endings.push_async_callback(controller.stop)
        if config.node.initial_brokers_file:
            initial = InitialBrokers(
                config.node.initial_brokers_file,
                config.cluster.initial_brokers,
                controller.set_initial_brokers,
            )
            await initial.look()  # Before this broker may become the controller.
            self._duties.begin(initial.run())
        # The service must run before this broker may become the controller.
        service = ControllerService(
            controller=controller,
            sessions=sessions,
            limits=config.limits,
            turns=self._turns,
            calls=listener.calls,
        )
        listener.add(service, by_drpc=False)
        await listener.serve()
        self._endings.push_async_callback(listener.stop)
        self._endings.callback(service.end_streams)
        await controller.start()
        return controller

    async def _open_channel(
        self, controller: ControllerShell, cache: MetadataCache
    ) -> ControllerChannel:
        channel = ControllerChannel(
            self._config.cluster,
            self._peer_connections,
            election=controller,
            lease_ms=self._config.coordination.lease_times.duration_ms,
            cache=cache,
            keep_seen=self._directories.keep_seen,
            on_failure=self._duties.fail,
        )
        self._metrics.differing_cluster_settings.set_function(lambda: len(channel.differences))
        self._duties.begin(channel.run())
        await self._duties.unless_over(channel.ready())
        self._metrics.controller_session.set_function(lambda: channel.controller_id != NO_BROKER)
        return channel

    async def _open_directories(self, channel: ControllerChannel) -> None:
        await self._directories.open(channel.metadata.cluster.cluster_id)
        await self._directories.keep_seen(channel.seen)  # They were not open before.
        self._endings.push_async_callback(channel.keep_seen)

    async def _register(self, channel: ControllerChannel, listeners: Listeners) -> BrokerLife:
        """Begin a life of this broker, and store its identity."""
        node, directories = self._config.node, self._directories
        registration = registration_of(node, directories, listeners)
        try:
            broker: BrokerLife = await self._duties.unless_over(channel.register(registration))
        except InvalidConfigError as error:
            raise InvalidConfigError(with_command(error.message, self._config)) from error
        self.life = broker
        self._metrics.on_registered(broker.broker_id, node)
        await directories.begin_life(broker)  # Before the first heartbeat.
        return broker

    def _make_lifecycle(
        self,
        channel: ControllerChannel,
        broker: BrokerLife,
        partitions: Partitions,
        addresses: Addresses,
    ) -> BrokerLifecycle:
        config = self._config
        watch = ReluctanceWatch(
            partitions.directories, self._reader, config.storage, config.cluster.address_settle_ms
        )
        self._duties.begin(watch.run())
        watch.show_in(self._metrics.reluctance)
        lifecycle = BrokerLifecycle(
            channel,
            broker,
            log_ends=partitions.log_ends,
            offline=partitions.replicas.unopened.offline,
            reluctance=lambda: watch.reluctance,
            media=partitions.placement.working_media,
            outside_address=partial(addresses.of, ListenerProtocol.GRPC, Listener.OUTSIDE),
            drpc_addresses=addresses.drpc,
            tls_addresses=addresses.tls,
            kafka_addresses=addresses.kafka,
            quotas=self._quotas,
        )

        async def leave() -> None:
            if not self._duties.exit_code:  # Else this process must end at once.
                await lifecycle.leave()

        self._endings.push_async_callback(leave)
        return lifecycle

    def _make_partitions(self, broker: BrokerLife, channel: ControllerChannel) -> Partitions:
        def on_changes(changes: MetadataChanges) -> None:
            for topic in changes.deleted:
                self._metrics.forget_topic(str(topic.name))
            self._metrics.replication.on_changes(changes, broker.broker_id)

        partitions = Partitions(
            broker=broker,
            config=self._config.replication,
            directories=self._directories.opened,
            ask_controller=channel.request,
            mailbox=self._mailbox,
            log_config=partial(LogConfig.of, storage=self._config.storage),
            inflated_bytes_max=self._config.limits.batch_inflated_bytes_max,
            on_changes=on_changes,
            on_lost=self._metrics.replication.on_lost,
            on_replicated=self._metrics.requests.replicate.observe,
            on_all_failed=self._duties.fail,
            on_failure=self._duties.fail,
            reader=self._reader,
            misses_a_directory=self._directories.misses_some,
        )
        self._endings.push_async_callback(partitions.stop)
        storage, mailbox = self._config.storage, self._mailbox
        self._segment_duties += [
            Cleaners(partitions, mailbox, storage, self._metrics.compaction),
            TierMovers(partitions, mailbox, storage, self._metrics.tiers),
        ]
        return partitions

    def _make_transactions(
        self, partitions: Partitions, peers: Peers, producer_ids: ProducerIds
    ) -> Transactions:
        transactions = Transactions(
            partitions,
            self._reader,
            self._config.transactions,
            peers,
            producer_ids,
            metrics=self._metrics.transactions,
            turns=self._turns,
            on_failure=self._duties.fail,
            limits=CoordinatorLimits(),
        )
        self._endings.callback(transactions.runtime.stop)
        self._duties.begin(transactions.watch())
        return transactions

    def _make_groups(self, partitions: Partitions) -> Groups:
        groups = Groups(
            partitions,
            self._reader,
            self._config.positions,
            self._config.groups,
            turns=self._turns,
            on_failure=self._duties.fail,
            limits=CoordinatorLimits(),
        )
        self._endings.callback(groups.runtime.stop)
        self._duties.begin(groups.expire())
        self._duties.begin(groups.watch_sessions())
        self._metrics.positions.set_function(groups.kept)
        self._metrics.positions_unready.set_function(groups.runtime.unready)
        return groups

    def _replicate(
        self,
        broker: BrokerLife,
        channel: ControllerChannel,
        partitions: Partitions,
        listener: ReplicaListener,
        *,
        markers: MarkerWriter,
        joins: JoinAnswers,
    ) -> ReplicaService:
        """Follow the leaders of partitions, and serve the followers."""
        config = self._config
        fetcher = ReplicaFetcher(
            broker,
            partitions,
            mailbox=self._mailbox,
            config=config.replication,
            connections=self._peer_connections,
            on_failure=self._duties.fail,
        )
        self._endings.push_async_callback(fetcher.stop)
        followers = ReplicaService(
            markers=markers,
            joins=joins,
            partitions=partitions,
            reader=self._reader,
            early=self._early,
            turns=self._turns,
            limits=config.limits,
            metrics=self._metrics,
            replication=config.replication,
            quotas=None,
            calls=listener.calls,
        )

        def on_config(cluster: ClusterConfig) -> None:
            partitions.configure(cluster)
            followers.configure(broker_partitions_max=cluster.broker_partitions_max)

        channel.add_config_callback(on_config)
        listener.add(followers)
        # Followers are served until the clients have left: the answers wait for them.
        self._endings.callback(followers.end_streams)
        return followers

    def _observe(self, partitions: Partitions, controller: ControllerShell) -> Housekeeping:
        """Fill the metrics page, which is served already: many logs may take minutes to open."""
        housekeeping = Housekeeping(
            partitions,
            self._reader,
            self._config.storage,
            self._metrics,
            is_controller=lambda: controller.is_controller,
            hanging_ms=self._config.transactions.hanging_ms,
        )
        self._duties.begin(housekeeping.observe())
        self._duties.begin(self._quotas.run())
        self._duties.begin(self._audit.run())
        if self._access is not None:
            self._duties.begin(self._access.run())
        return housekeeping

    def _begin_upkeep(
        self,
        housekeeping: Housekeeping,
        partitions: Partitions,
        groups: Groups,
        peers: Peers,
        followers: ReplicaService,
    ) -> None:
        peers.serve_here(DESCRIBE_LAGS, followers.lags.describe)
        lags = GroupLags(
            groups,
            partitions,
            peers,
            turns=self._turns,
            metrics=self._metrics.group_lags,
            on_failure=self._duties.fail,
        )
        self._duties.begin(housekeeping.run())
        self._duties.begin(lags.run())
        for duty in self._segment_duties:
            self._duties.begin(duty.run())

    async def _take_up_partitions(
        self, channel: ControllerChannel, lifecycle: BrokerLifecycle, partitions: Partitions
    ) -> None:
        """Follow the metadata; return once the logs are open, and this broker may lead."""
        duties = self._duties
        channel.add_image_callback(partitions.on_image)
        channel.add_image_callback(self._quotas.on_image)
        duties.begin(partitions.tick())
        await duties.unless_over(partitions.settled())
        await duties.unless_over(lifecycle.until_unfenced())
        duties.begin(lifecycle.run())
        await duties.unless_over(partitions.settled())

    async def _close_segment_duties(self) -> None:
        """Let the steps of cleanings and moves end; what is not replaced stays as it was."""
        for duty in self._segment_duties:
            await asyncio.to_thread(duty.close)

    async def _close_logs(self) -> None:
        """Write accepted batches, close every log, and mark the directories that are in order."""
        used = () if self.partitions is None else self.partitions.directories
        for opened in used:
            await asyncio.to_thread(opened.appender.close)
        await self._directories.close(
            in_order=[opened.directory for opened in used if opened.failure is None],
            broker_epoch=None if self.life is None else self.life.broker_epoch,
            others=() if self.partitions is None else self.partitions.not_ours(),
        )


def _largest_answer(config: BrokerConfig) -> int:
    """Return how many bytes of records a fetch of either protocol may have."""
    return max(config.limits.fetch_response_bytes_max, config.kafka.fetch_response_bytes_max)


def _serve_metrics(
    config: BrokerConfig, metrics: BrokerMetrics, listeners: Listeners, endings: AsyncExitStack
) -> str:
    """Serve the metrics page; return its address, which is empty where there is none."""
    if config.metrics.port < 0:
        return ""
    page = serve_metrics(
        config.metrics,
        metrics.registry,
        config.listeners.hosts,
        is_ready=lambda: listeners.are_serving,
    )
    endings.push_async_callback(asyncio.to_thread, page.close)
    return str(Address(config.metrics.host, page.port))


def _address(
    channel: ControllerChannel,
    broker: BrokerLife,
    listeners: Listeners,
    addresses: Addresses,
    metrics_address: str,
) -> BrokerAddress:
    return BrokerAddress(
        cluster_id=channel.metadata.cluster.cluster_id,
        broker_id=broker.broker_id,
        address=str(listeners.clients.address),
        outside_address=addresses.of(ListenerProtocol.GRPC, Listener.OUTSIDE),
        drpc_address=addresses.of(ListenerProtocol.DRPC, Listener.CLIENTS),
        tls_address=addresses.of(ListenerProtocol.GRPC, Listener.CLIENTS_TLS),
        kafka_address=addresses.of(ListenerProtocol.KAFKA, Listener.CLIENTS),
        replica_address=str(listeners.replica.address),
        metrics_address=metrics_address,
    )
