"""Broker processes whose cluster lives in an API server, by configuration alone."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api_server.running import NAMESPACE, RunningApiServer
from tests.integration.conftest import StartBroker
from tests.integration.kubernetes.conftest import started_api_server
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import read_all

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.metadata.model import SHARD_KEYS

OBJECTS = f"/apis/millrace.dev/v1/namespaces/{NAMESPACE}"

Settings = dict[str, object]


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApiServer]:
    """An API server for this module, as one of its tests deletes all definitions and objects."""
    with started_api_server(tmp_path_factory.mktemp("api-server")) as server:
        yield server


@pytest.fixture
def settings(api_server: RunningApiServer, tmp_path: Path, cluster_name: str) -> Settings:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api_server.kubeconfig())
    return {
        "coordination.kind": "kubernetes",
        "coordination.kubernetes.kubeconfig": kubeconfig,
        "coordination.kubernetes.cluster_name": cluster_name,
    }


def append(broker: RunningBroker, topic_id: TopicId) -> int:
    """Produce a record; return its offset."""
    partition = TopicPartition(topic_id, 0)
    with RawClient(broker.address) as client:
        offset: int = client.produce_batch(partition, batch_of(partition)).base_offset
    return offset


def test_a_broker_finds_its_topics_in_the_api_server_again(
    api_server: RunningApiServer, start_broker: StartBroker, settings: Settings, cluster_name: str
) -> None:
    broker = start_broker(settings)
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("kept")
    assert append(broker, topic_id) == 0
    broker.kill()
    broker.start()
    assert append(broker, topic_id) == 1
    assert broker.stop() == 0
    _, state = api_server.request("GET", f"{OBJECTS}/clusterstates/{cluster_name}")
    assert state["spec"]["controllerEpoch"] >= 2  # More, if the machine stood still meanwhile.
    _, shards = api_server.request("GET", f"{OBJECTS}/stateshards")
    names = [shard["metadata"]["name"] for shard in shards["items"]]
    ours = [name for name in names if name.startswith(f"{cluster_name}-")]
    assert len(ours) == len(SHARD_KEYS)
    assert not list(broker.folder.glob("*.sqlite"))


def test_three_brokers_go_on_without_the_one_that_was_the_controller(
    start_broker: StartBroker, settings: Settings
) -> None:
    brokers = [start_broker({**settings, "node.name": f"broker-{number}"}) for number in range(3)]
    bootstrap = ",".join(broker.address for broker in brokers)
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap) as producer:
        admin.create_topic("t", partitions=6, replication_factor=3)
        values = [b"%d" % number for number in range(60)]

        def produce(some: list[bytes]) -> None:
            sent = [producer.send("t", value, partition=int(value) % 6) for value in some]
            assert all(delivery.result(60).offset >= 0 for delivery in sent)

        produce(values[:30])
        before = admin.describe_cluster()
        gone = before.controller_id
        leaders = {partition.leader for partition in admin.describe_topic("t").partitions}
        assert leaders == {0, 1, 2}  # So the controller leads something, too.
        brokers[gone].kill()
        produce(values[30:])

        def is_replaced() -> bool:
            # Any broker may answer, also one that has yet to hear of it.
            after = admin.describe_cluster()
            (state,) = (each.state for each in after.brokers if each.broker_id == gone)
            return after.controller_id not in (gone, -1) and state == "fenced"

        wait_until(is_replaced, "another broker is the controller", 60)
        brokers[gone].start()
        wait_until(lambda: admin.describe_health().is_healthy, "all are in sync again", 60)
    assert sorted(read_all(bootstrap, "t", 60), key=int) == values


@pytest.mark.nightly
def test_a_broker_whose_cluster_was_deleted_refuses_to_make_a_new_one(
    api_server: RunningApiServer, start_broker: StartBroker, settings: Settings, cluster_name: str
) -> None:
    broker = start_broker(settings)
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("kept")
    assert append(broker, topic_id) == 0
    broker.stop()
    path = f"{OBJECTS}/clusterstates/{cluster_name}"
    _, backup = api_server.request("GET", path)
    assert api_server.request("DELETE", path)[0] == 200
    code, log = broker.refused_start()
    assert code == 1, log
    assert "Traceback" not in log
    assert "Restore it" in log
    assert api_server.request("GET", path)[0] == 404
    backup["metadata"] = {"name": cluster_name, "labels": backup["metadata"]["labels"]}
    assert api_server.request("POST", f"{OBJECTS}/clusterstates", backup)[0] == 201
    broker.start()
    assert append(broker, topic_id) == 1


def test_a_refused_older_copy_comes_with_the_command_that_accepts_it(
    start_broker: StartBroker, settings: Settings, tmp_path: Path
) -> None:
    broker = start_broker({**settings, "node.name": "logs-b-0"})
    broker.stop()
    (log,) = broker.log_dirs
    shutil.copytree(log, tmp_path / "old")
    broker.start()
    broker.kill()
    shutil.rmtree(log)
    (tmp_path / "old").rename(log)
    code, said = broker.refused_start()
    assert code == 1, said
    assert "kubectl annotate --overwrite pod logs-b-0 millrace.dev/accept-older-copy=1/2" in said


@pytest.mark.nightly
def test_brokers_serve_on_while_the_definitions_and_all_objects_are_deleted(
    api_server: RunningApiServer, start_broker: StartBroker, settings: Settings, cluster_name: str
) -> None:
    brokers = [start_broker({**settings, "node.name": f"broker-{number}"}) for number in range(3)]
    bootstrap = ",".join(broker.address for broker in brokers)
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap, acks="all") as producer:
        admin.create_topic("t", partitions=6, replication_factor=3)

        def produce(values: range) -> None:
            sent = [producer.send("t", b"%d" % value, partition=value % 6) for value in values]
            assert all(delivery.result(60).offset >= 0 for delivery in sent)

        produce(range(30))
        backup = [
            (kind, document)
            for kind in ("clusterstates", "stateshards")
            for document in api_server.request("GET", f"{OBJECTS}/{kind}")[1]["items"]
            if document["metadata"]["name"].startswith(cluster_name)
        ]
        assert len(backup) == 1 + len(SHARD_KEYS)
        try:
            api_server.delete_definitions()

            def is_known() -> bool:
                # The store is asked for nothing while nothing is to change.
                with contextlib.suppress(MillraceError):
                    admin.alter_topic("t", set_config={"retention.ms": "9000000"})
                return "custom resource definitions" in admin.describe_health().controller_problem

            wait_until(is_known, "cluster health says what is gone", 60)
            written, until = 30, time.monotonic() + 8  # A lease, and a session: each broker looks.
            while time.monotonic() < until:
                produce(range(written, written + 1))
                written += 1
            assert all(broker.is_running for broker in brokers)
        finally:
            api_server.install_definitions()
        for kind, document in backup:
            metadata = {"name": document["metadata"]["name"]}
            restored = {**document, "metadata": metadata}
            assert api_server.request("POST", f"{OBJECTS}/{kind}", restored)[0] == 201
        wait_until(lambda: admin.describe_health().is_healthy, "it is healthy again", 60)
        admin.create_topic("u", replication_factor=3)
    assert sorted(map(int, read_all(bootstrap, "t", written))) == list(range(written))


def test_a_namespace_that_is_not_there_keeps_a_broker_from_starting(
    api_server: RunningApiServer, tmp_path: Path, settings: Settings
) -> None:
    kubeconfig = tmp_path / "admin"
    kubeconfig.write_text(api_server.kubeconfig("admin"))
    settings |= {
        "coordination.kubernetes.kubeconfig": kubeconfig,
        "coordination.kubernetes.namespace": "nowhere",
    }
    code, log = RunningBroker(tmp_path / "broker", settings).refused_start()
    assert code == 1, log
    assert "Traceback" not in log
    assert "coordination.kubernetes.namespace" in log
