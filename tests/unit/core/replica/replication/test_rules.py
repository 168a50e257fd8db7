"""The settings of replication."""

from millrace.core import settings
from millrace.core.replica.replication.rules import ReplicationConfig


def test_settings_have_kafkas_names_and_defaults_where_kafka_has_them() -> None:
    config = settings.parse(ReplicationConfig, {"replica_lag_time_max_ms": "5s"})
    assert config.replica_lag_time_max_ms == 5000
    assert ReplicationConfig().replica_lag_time_max_ms == 30_000
