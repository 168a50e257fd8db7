"""The settings of simulated brokers: small segments, short times, and little memory."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tests.sim.world import World

from millrace.core.broker_config import (
    AccessConfig,
    BrokerConfig,
    CoordinationConfig,
    StorageConfig,
)
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.positions.position import PositionsConfig
from millrace.core.coordinator.transactions.config import TransactionsConfig
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.replica.replication.rules import ReplicationConfig

DIRECTORY: Final = "/data"
ON_HDD: Final = "/hdd"
"""The second directory of brokers that have two."""
DIRECTORIES: Final = (DIRECTORY, ON_HDD)
REPLICATION: Final = ReplicationConfig(
    replica_lag_time_max_ms=5_000,
    replica_fetch_backoff_ms=200,
    isr_rejoin_pause_ms=2_000,
)
CLUSTER: Final = ClusterConfig(
    positions_partitions=3,
    transactions_partitions=2,
    broker_session_timeout_ms=6_000,
    address_settle_ms=0,
    deleted_topic_retention_ms=120_000,
)
COORDINATION: Final = CoordinationConfig()
GROUPS: Final = GroupsConfig(classic_rebalance_delay_ms=500)
POSITIONS: Final = PositionsConfig()
EVERYBODY: Final = AccessConfig()
"""May do everything."""
TRANSACTIONS: Final = TransactionsConfig(lease_ms=2_000)
_DEFAULT: Final = BrokerConfig(log_dirs=(DIRECTORY,))


class DrpcShares(NamedTuple):
    """The shares of brokers that have a DRPC listener, by side, and of clients that use it."""

    for_clients: float
    for_replicas: float
    of_clients: float


EVERYWHERE: Final = DrpcShares(1.0, 1.0, 1.0)
_MIXED: Final = DrpcShares(0.6, 0.6, 0.7)
"""As in a rolling upgrade."""
_DRPC: Final = {
    EVERYWHERE: 12,
    _MIXED: 5,
    DrpcShares(1.0, 0.0, 1.0): 2,
    DrpcShares(0.0, 1.0, 1.0): 2,
    DrpcShares(0.0, 0.0, 1.0): 2,
}
"""How often each of them is drawn."""


class Drpc:
    """Who uses DRPC in a cluster; a broker's later lives are as its first.

    Args:
        shares: of brokers and clients; None: the seed draws them.
    """

    def __init__(self, world: World, shares: DrpcShares | None) -> None:
        self._world = world
        [drawn] = world.random("drpc").choices(list(_DRPC), list(_DRPC.values()))
        self._for_clients, self._for_replicas, self._of_clients = shares or drawn

    def _is_drawn(self, what: str, share: float) -> bool:
        return self._world.random(f"drpc {what}").random() < share

    def is_for_clients(self, broker: str) -> bool:
        """Whether a broker has a DRPC listener for clients."""
        return self._is_drawn(f"clients of {broker}", self._for_clients)

    def is_for_replicas(self, broker: str) -> bool:
        """Whether a broker has a DRPC listener for other brokers."""
        return self._is_drawn(f"replicas of {broker}", self._for_replicas)

    def transport(self, client: str) -> str:
        """Return the setting `transport` of a client."""
        return "auto" if self._is_drawn(client, self._of_clients) else "grpc"


NOBODY: Final = 0.0
_KAFKA: Final = {NOBODY: 6, 0.3: 2, 0.7: 1, 1.0: 1}
"""The shares of clients that speak Kafka's protocol, and how often each is drawn."""


class Kafka:
    """Who speaks Kafka's protocol in a cluster, of the clients that can.

    Args:
        share: of them; None: the seed draws it.

    Attributes:
        is_served: whether brokers have a listener for it.
        is_spoken_by_groups: whether members of the group speak it, all of them (K11).
    """

    def __init__(self, world: World, share: float | None) -> None:
        self._world = world
        [drawn] = world.random("kafka").choices(list(_KAFKA), list(_KAFKA.values()))
        self._share = drawn if share is None else share
        self.is_served = self._share > NOBODY
        self.is_spoken_by_groups = world.random("kafka groups").random() < self._share

    def is_spoken_by(self, client: str) -> bool:
        """Whether a client speaks it; of the copiers of a topic all do, or none (K11)."""
        if client.startswith("copier-"):
            client = "copiers"
        if client.startswith(("member-", "other-")):
            return client.startswith("member-") == self.is_spoken_by_groups
        return self._world.random(f"kafka {client}").random() < self._share


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The differences between simulated clusters."""

    replication: ReplicationConfig = REPLICATION
    cluster: ClusterConfig = CLUSTER
    coordination: CoordinationConfig = COORDINATION
    groups: GroupsConfig = GROUPS
    positions: PositionsConfig = POSITIONS
    transactions: TransactionsConfig = TRANSACTIONS
    scrub_bytes_per_second: int = 20_000
    slow_flush_ms: int = 2_000
    cleaner_dedupe_buffer_size: int = 64 << 10
    cleaner_io_max_bytes_per_second: int = -1
    has_hdd: bool = False
    access: AccessConfig = EVERYBODY

    def of(
        self, name: str, host: str, port: int, drpc: "Drpc", kafka_port: int = -1
    ) -> BrokerConfig:
        """Return those of one broker, whose name is its zone, too.

        Args:
            name: of its machine.
            host: of its machine.
            port: for clients.
            drpc: who uses it.
            kafka_port: for clients of Kafka; -1: it does not serve them.
        """
        listeners = _DEFAULT.listeners
        clients_drpc, replicas_drpc = listeners.clients_drpc, listeners.replicas_drpc
        return replace(
            _DEFAULT,
            log_dirs=(DIRECTORY, f"hdd:{ON_HDD}") if self.has_hdd else (DIRECTORY,),
            node=replace(_DEFAULT.node, name=name, rack=name),
            cluster=self.cluster,
            coordination=self.coordination,
            replication=self.replication,
            groups=self.groups,
            positions=self.positions,
            transactions=self.transactions,
            access=self.access,
            storage=StorageConfig(
                segment_bytes_max=20_000,
                index_interval_bytes_max=1_000,
                recovery_point_bytes=50_000,
                recovery_point_interval_ms=10_000,
                ballast_bytes=8 << 10,
                retention_check_interval_ms=3_000,
                trash_delay_ms=20_000,
                scrub_bytes_per_second=self.scrub_bytes_per_second,
                cleaner_backoff_ms=1_000,
                cleaner_dedupe_buffer_size=self.cleaner_dedupe_buffer_size,
                tier_free_bytes_min=0,
                tier_check_interval_ms=500,
                cleaner_io_max_bytes_per_second=self.cleaner_io_max_bytes_per_second,
                slow_flush_ms=self.slow_flush_ms,
            ),
            metrics=replace(_DEFAULT.metrics, port=-1),
            listeners=replace(
                listeners,
                clients=replace(listeners.clients, host=host, port=port),
                replicas=replace(listeners.replicas, host=host),
                clients_kafka=replace(listeners.clients_kafka, host=host, port=kafka_port),
                clients_drpc=clients_drpc
                if drpc.is_for_clients(name)
                else replace(clients_drpc, port=-1),
                replicas_drpc=replicas_drpc
                if drpc.is_for_replicas(name)
                else replace(replicas_drpc, port=-1),
            ),
            threads=replace(_DEFAULT.threads, check=1, read=1),
            limits=replace(_DEFAULT.limits, fetch_response_bytes_max=64 << 10),
        )
