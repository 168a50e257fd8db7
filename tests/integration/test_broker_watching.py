"""What those see who watch a broker: health, reflection, metrics, its log."""

import json
import os
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.core.ids import TopicPartition
from millrace.proto.v1 import cluster_pb2, common_pb2

SERVICES = [f"millrace.proto.v1.{name}" for name in ("Cluster", "Fetch", "Produce")]


def test_health_answers_for_the_broker_and_each_service(shared_broker: RunningBroker) -> None:
    with grpc.insecure_channel(shared_broker.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", *SERVICES):
            request = health_pb2.HealthCheckRequest(service=name)
            answer = health.Check(request, timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_names_every_service_and_its_messages(shared_broker: RunningBroker) -> None:
    with grpc.insecure_channel(shared_broker.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[1]),
        ]
        listed, described = stub.ServerReflectionInfo(iter(requests), timeout=10)
        names = [service.name for service in listed.list_services_response.service]
        assert set(SERVICES) < set(names)
        found = described.file_descriptor_response.file_descriptor_proto
        files = [FileDescriptorProto.FromString(file).name for file in found]
        assert "millrace/proto/v1/fetch.proto" in files


def test_the_counters_move_with_the_work(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("counted", partitions=2)
        partition = TopicPartition(topic_id, 0)
        batch = batch_of(partition, [b"x"] * 3, producer_id=client.new_producer_id(), sequence=0)
        for _ in range(3):  # Two of them are repetitions, which append nothing.
            assert client.produce_batch(partition, batch).base_offset == 0
        client.produce_batch(partition, b"nonsense" * 20)
        session = client.fetch()
        session.ask([(1, partition, 0)], credit=1 << 20)
        assert next(session.answers())[0].length == len(batch)
        metrics = broker.metrics()
        assert metrics['millrace_topic_appended_records_total{topic="counted"}'] == 3
        assert metrics['millrace_topic_appended_bytes_total{topic="counted"}'] == len(batch)
        assert metrics['millrace_topic_fetched_bytes_total{topic="counted"}'] == len(batch)
        assert metrics['millrace_refusals_total{error="CORRUPT_BATCH",method="Produce"}'] == 1
        assert metrics["millrace_fetch_streams"] == 1
        session.close()
        wait_until(lambda: broker.metrics()["millrace_partitions"] == 2, "the gauge is set")
        wait_until(
            lambda: broker.metrics()["millrace_loop_lag_seconds_count"] > 0, "it is measured"
        )
        free = f'millrace_log_dir_free_bytes{{log_dir="{broker.log_dirs[0]}",media="ssd"}}'
        wait_until(lambda: broker.metrics().get(free, 0) > 0, "the free space is known")


def test_a_client_that_is_refused_is_counted_and_named(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                client.cluster.DescribeLogs(
                    cluster_pb2.DescribeLogsRequest(
                        partitions=[common_pb2.TopicPartition(topic_id=b"short")]
                    ),
                    timeout=10,
                    metadata=[("millrace-client-id", "noisy")],
                )
        partition = TopicPartition(client.create_topic("refusing"), 0)
        assert client.produce_batch(partition, b"nonsense" * 20).error.code
    metrics = broker.metrics()
    assert metrics['millrace_refusals_total{error="MALFORMED_REQUEST",method="DescribeLogs"}'] == 3
    assert metrics['millrace_refusals_total{error="CORRUPT_BATCH",method="Produce"}'] == 1
    wait_until(lambda: broker.log_has('"method": "Produce"'), "it is named")
    lines = [line for line in broker.log_path.read_text().splitlines() if "was refused" in line]
    assert len(lines) <= 3, "one of each, and one more if ten seconds ended meanwhile"
    said, *_, corrupt = map(json.loads, lines)
    assert (corrupt["method"], corrupt["client_id"]) == ("Produce", "")
    assert said["event"] == "caller_refused"
    assert said["client_id"] == "noisy"
    assert said["software"].startswith("grpc-python/")
    assert said["method"] == "DescribeLogs"
    assert "topic id" in said["error"]
    assert said["address"].startswith("127.0.0.1:")


def test_a_broker_whose_logs_take_long_to_open_shows_how_it_does(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("slow", partitions=2)
        for number in range(2):
            partition = TopicPartition(topic_id, number)
            client.produce_batch(partition, batch_of(partition))
    broker.kill()
    epochs = broker.partition_directory(topic_id) / "leader-epochs"
    assert epochs.is_file()
    epochs.unlink()
    os.mkfifo(epochs)  # Who opens it waits for a writer.
    process = broker.spawn()
    try:

        def shows(name: str, value: float) -> bool:
            with suppress(OSError):  # The page is not there yet.
                return broker.metrics().get(name) == value
            return False

        wait_until(lambda: shows("millrace_controller_active", 1), "who is the controller", 60)
        wait_until(lambda: shows("millrace_partitions", 1), "what is open", 60)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_every_line_of_the_log_is_json_with_level_and_time(start_broker: StartBroker) -> None:
    broker = start_broker({"logging.level": "debug"})
    broker.stop()
    for line in broker.log_path.read_text().splitlines():
        event = json.loads(line)
        assert event["message"]
        # A pause of the machine may be worth a warning.
        assert event["level"] in ("debug", "info", "warning")
        assert event["timestamp"].endswith("Z")
