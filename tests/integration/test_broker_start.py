"""What keeps a broker from starting is said in words: what is wrong, and what to do about it."""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import RunningBroker

from millrace.core.ids import TopicPartition


def occupied_port(stack: ExitStack) -> int:
    """Return a port that somebody else listens on."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port: int = listener.getsockname()[1]
    return port


def assert_refused(broker: RunningBroker, *words: str) -> None:
    """Start a broker that must refuse, with these words and without a trace."""
    code, log = broker.refused_start()
    assert code == 1, log
    assert "Traceback" not in log, log
    for word in words:
        assert word in log


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, {"listeners.clients.prot": 1, "limits.conections_max": 5})
    assert_refused(broker, "listeners.clients.prot", "did you mean 'port'", "connections_max")


@pytest.mark.parametrize("setting", ["listeners.clients.port", "metrics.port"])
def test_a_port_in_use_is_named(tmp_path: Path, setting: str) -> None:
    with ExitStack() as stack:
        port = occupied_port(stack)
        assert_refused(RunningBroker(tmp_path, {setting: port}), str(port), setting)
    RunningBroker(tmp_path).start().abandon()


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
@pytest.mark.parametrize("section", ["listeners.clients", "listeners.replicas", "metrics"])
def test_a_host_that_is_not_this_machine_is_named(tmp_path: Path, section: str, host: str) -> None:
    words = host, f"set {section}.host"
    assert_refused(RunningBroker(tmp_path, {f"{section}.host": host, "insecure": True}), *words)


def test_connections_of_both_listeners_leave_room_for_files(start_broker: StartBroker) -> None:
    wrapper = ["sh", "-c", 'ulimit -n 1000; exec "$@"', "sh"]
    broker = start_broker({"storage.file_handles_max": 500}, wrapper=wrapper)
    (line,) = (line for line in broker.log_path.read_text().splitlines() if "open_files" in line)
    said = json.loads(line)
    assert said["open_files"] == 1000
    assert 0 < 2 * said["allowed"] < 1000 - 500


def test_a_log_directory_has_one_broker_at_a_time(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    other = RunningBroker(tmp_path / "other", log_dirs=broker.log_dirs)
    other.folder.joinpath("coordination.sqlite").hardlink_to(broker.folder / "coordination.sqlite")
    code, log = other.refused_start()
    assert code == 1, log
    assert "Traceback" not in log
    with RawClient(broker.address) as client:
        partition = TopicPartition(client.create_topic("still-there"), 0)
        assert client.produce_batch(partition, batch_of(partition)).base_offset == 0


def overwritten(name: str) -> Callable[[RunningBroker], None]:
    """Return what puts nonsense into a file."""

    def damage(broker: RunningBroker) -> None:
        (broker.folder / name).write_bytes(b"nonsense" * 100)

    return damage


def removed(name: str) -> Callable[[RunningBroker], None]:
    """Return what removes a file."""
    return lambda broker: (broker.folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (overwritten("coordination.sqlite"), ["coordination.sqlite", "backup"]),
        (removed("coordination.sqlite"), ["store", "Restore"]),
        (overwritten("log/identity"), ["log", "identity", "Restore"]),
    ],
)
def test_damaged_files_are_named_and_nothing_is_made_anew(
    start_broker: StartBroker, damage: Callable[[RunningBroker], None], words: list[str]
) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("kept")
        client.produce_batch(TopicPartition(topic_id, 0), batch_of(TopicPartition(topic_id, 0)))
    segments = list(broker.partition_directory(topic_id).glob("*.log"))
    contents = [segment.read_bytes() for segment in segments]
    broker.stop()
    for rest in broker.folder.glob("coordination.sqlite-*"):
        rest.unlink()
    damage(broker)
    assert_refused(broker, *words)
    assert [segment.read_bytes() for segment in segments] == contents


def test_a_log_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert_refused(RunningBroker(tmp_path / "broker", log_dirs=[file]), str(file))


def test_a_log_directory_of_another_cluster_is_refused(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    one, other = start_broker(), start_broker()
    one.stop()
    other.stop()
    mixed = RunningBroker(tmp_path / "mixed", log_dirs=[*one.log_dirs, *other.log_dirs])
    assert_refused(mixed, "cluster")


def test_connections_leave_descriptors_for_segments(start_broker: StartBroker) -> None:
    broker = start_broker(
        {"storage.file_handles_max": 64, "limits.handshake_ms_max": 60_000},
        wrapper=["sh", "-c", 'ulimit -n 400; exec "$@"', "sh"],
    )
    host, _, port = broker.address.rpartition(":")
    with RawClient(broker.address) as client, ExitStack() as stack:
        partition = TopicPartition(client.create_topic("crowded", segment_bytes=1 << 20), 0)
        for _ in range(600):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        for number in range(10):
            result = client.produce_batch(partition, batch_of(partition, [bytes(400_000)]))
            assert (result.error.code, result.base_offset) == (0, number)
        assert client.log(partition).segments > 3
    assert broker.stop() == 0


def test_too_few_descriptors_are_refused(tmp_path: Path) -> None:
    wrapper = ["sh", "-c", 'ulimit -n 400; exec "$@"', "sh"]
    assert_refused(RunningBroker(tmp_path, wrapper=wrapper), "file_handles_max", "ulimit")
