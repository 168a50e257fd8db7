"""The settings of replication."""

import pytest

from millrace.core import settings
from millrace.core.errors import InvalidConfigError
from millrace.core.replication.rules import ReplicationConfig


def test_settings_have_kafkas_names_and_defaults_where_kafka_has_them() -> None:
    config = settings.parse(ReplicationConfig, {"replica_lag_time_max_ms": "5s"})
    assert config.replica_lag_time_max_ms == 5000
    assert ReplicationConfig().replica_lag_time_max_ms == 30_000
    assert ReplicationConfig().replica_fetch_backoff_ms == 1000


def test_the_longest_pause_is_not_shorter_than_the_first() -> None:
    with pytest.raises(InvalidConfigError, match="isr_rejoin_pause_max_ms"):
        settings.parse(
            ReplicationConfig, {"isr_rejoin_pause_ms": "60s", "isr_rejoin_pause_max_ms": "30s"}
        )
