from dataclasses import replace
from pathlib import Path

from millrace.broker import config
from millrace.broker.rpc.broker_settings import describe_settings
from millrace.core.broker_config import BrokerConfig
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.settings import named_values
from millrace.proto.v1 import cluster_pb2 as pb


def described(settings: BrokerConfig, cluster: ClusterConfig) -> dict[str, tuple[str, int]]:
    return {
        setting.name: (setting.value, setting.source)
        for setting in describe_settings(settings, cluster)
    }


def test_every_setting_is_described_with_where_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'log_dirs = ["a", "hdd:b"]\n[coordination]\npath = "c"\n'
        "[storage]\ntrash_delay_ms = 86400000\nballast_bytes = '128MiB'\n"
    )
    loaded = config.load(path, {"MILLRACE_BROKER__STORAGE__BALLAST_BYTES": "1MiB"})
    found = described(loaded, loaded.cluster)
    assert list(found) == [name for name, _, _ in named_values(loaded)]
    assert found["log_dirs"] == ("a,hdd:b", pb.CONFIG_SOURCE_FILE)
    assert found["storage.trash_delay_ms"] == ("86400000", pb.CONFIG_SOURCE_FILE)
    assert found["storage.ballast_bytes"] == ("1048576", pb.CONFIG_SOURCE_ENVIRONMENT)
    assert found["coordination.shared"] == ("false", pb.CONFIG_SOURCE_DEFAULT)


def test_the_controller_s_settings_of_the_cluster_are_those_that_count() -> None:
    embedded = config.embedded("data")
    theirs = replace(embedded.cluster, default_partitions=7)
    found = described(embedded, theirs)
    assert found["cluster.default_partitions"] == ("7", pb.CONFIG_SOURCE_CONTROLLER)
    timeout = "cluster.broker_session_timeout_ms"
    assert found[timeout] == ("2000", pb.CONFIG_SOURCE_COMMAND)
