"""The settings of simulated brokers: small segments, short times, and little memory."""

from dataclasses import dataclass, replace
from typing import Final

from millrace.core.broker_config import BrokerConfig, CoordinationConfig, StorageConfig
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.positions.position import PositionsConfig
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
    broker_session_timeout_ms=6_000,
    address_settle_ms=0,
    deleted_topic_retention_ms=120_000,
)
COORDINATION: Final = CoordinationConfig()
GROUPS: Final = GroupsConfig()
POSITIONS: Final = PositionsConfig()
_DEFAULT: Final = BrokerConfig(log_dirs=(DIRECTORY,))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The differences between simulated clusters."""

    replication: ReplicationConfig = REPLICATION
    cluster: ClusterConfig = CLUSTER
    coordination: CoordinationConfig = COORDINATION
    groups: GroupsConfig = GROUPS
    positions: PositionsConfig = POSITIONS
    scrub_bytes_per_second: int = 20_000
    slow_flush_ms: int = 2_000
    cleaner_dedupe_buffer_size: int = 64 << 10
    cleaner_io_max_bytes_per_second: int = -1
    has_hdd: bool = False

    def of(self, name: str, host: str, port: int) -> BrokerConfig:
        """Return those of one broker, whose name is its zone, too."""
        return replace(
            _DEFAULT,
            log_dirs=(DIRECTORY, f"hdd:{ON_HDD}") if self.has_hdd else (DIRECTORY,),
            node=replace(_DEFAULT.node, name=name, rack=name),
            cluster=self.cluster,
            coordination=self.coordination,
            replication=self.replication,
            groups=self.groups,
            positions=self.positions,
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
                _DEFAULT.listeners,
                clients=replace(_DEFAULT.listeners.clients, host=host, port=port),
                replicas=replace(_DEFAULT.listeners.replicas, host=host),
                clients_drpc=replace(_DEFAULT.listeners.clients_drpc, port=-1),
                replicas_drpc=replace(_DEFAULT.listeners.replicas_drpc, port=-1),
            ),
            threads=replace(_DEFAULT.threads, check=1, read=1),
            limits=replace(_DEFAULT.limits, fetch_response_bytes_max=64 << 10),
        )
