"""The configuration that `millrace up --brokers` writes for each broker."""

from pathlib import Path

from millrace.broker import config
from millrace.cli.local.local_cluster import configuration


def test_it_says_that_it_is_written_anew_and_that_variables_count_over_it(tmp_path: Path) -> None:
    text = configuration(
        tmp_path, 1, brokers=3, log_dirs=["hdd:/large"], port=7092, metrics_port=7093
    )
    assert "at each start: changes here are lost" in text
    variable, _, value = text.partition("# MILLRACE_")[2].partition("\n")[0].partition("=")
    path = tmp_path / "broker-1.toml"
    path.write_text(text)
    loaded = config.load(path, {f"MILLRACE_{variable}": value.rstrip(".")})
    assert (loaded.node.name, loaded.metrics.port) == ("broker-1", 7103)
    ports = {entry.name: entry.config.port for entry in loaded.listeners.entries}
    assert ports == {"clients": 7102, "replicas": 0, "clients_drpc": 0, "replicas_drpc": 0}
    assert loaded.log_dirs == ("hdd:/large",)
    assert loaded.storage.file_handles_max == 2000
    assert loaded.cluster.initial_brokers == 3
    assert loaded.groups.classic_rebalance_delay_ms == 0
