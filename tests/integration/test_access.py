"""Who may do what: each call of the protocol by each role, and what is told to whom.

The table of calls is held against the `.proto`: a call without a row fails.
"""

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.integration.guarded import ROLES, GuardedBroker, authorization, call
from tests.integration.raw_client import (
    FETCH,
    PRODUCE,
    RawClient,
    RawStream,
    batch_of,
    request_of,
)

from millrace.core.ids import TopicId, TopicPartition
from millrace.proto.codec import decode_fetch_response
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1 import common_pb2, fetch_pb2
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest

SERVICES = ("cluster", "fetch", "groups", "positions", "produce", "transactions")
"""Modules of the services that clients call; shared transactions are one of them."""

KNOWN = set(ROLES) - {"nobody"}
TOPIC, GROUP = "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"
CLUSTER, ID = "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
UNKNOWN = "AUTHENTICATION_FAILED"

NAMED_TOPIC = {"name": "{ns}/orders"}
PARTITION = {"topic_partition": {"topic_id": "{id}", "partition": 0}}

SEERS = {"describer", "consumer", "producer", "owner", "administrator"}
"""Who may describe; only the administrator may in the other namespace."""
OWNER, ADMINISTRATOR = {"owner"}, {"administrator"}

TABLE: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "Cluster.Hello": ({}, KNOWN, ""),
    "Cluster.GetMetadata": ({"topics": ["{ns}/orders"]}, SEERS, TOPIC),
    "Cluster.CreateTopics": (
        {"topics": [{"name": "{ns}/new", "partitions": 1}], "validate_only": True},
        OWNER,
        TOPIC,
    ),
    "Cluster.AlterTopics": ({"topics": [NAMED_TOPIC], "validate_only": True}, OWNER, TOPIC),
    "Cluster.DeleteTopics": ({"topics": [NAMED_TOPIC], "validate_only": True}, OWNER, TOPIC),
    "Cluster.UndeleteTopics": ({"topics": [{"name": "{ns}/gone"}]}, OWNER, TOPIC),
    "Cluster.PurgeTopics": ({"topics": [{"name": "{ns}/gone"}]}, OWNER, TOPIC),
    "Cluster.ListDeletedTopics": ({}, KNOWN, ""),
    "Cluster.DescribeLogs": (
        {"partitions": [{"topic_id": "{id}", "partition": 0}]},
        SEERS,
        TOPIC,
    ),
    "Cluster.DescribeBrokerConfig": ({}, ADMINISTRATOR, CLUSTER),
    "Cluster.DeleteRecords": ({"partitions": [PARTITION]}, OWNER, TOPIC),
    "Cluster.DrainBroker": ({"broker_id": 4711}, ADMINISTRATOR, CLUSTER),
    "Cluster.UnregisterBroker": ({"broker_id": 4711}, ADMINISTRATOR, CLUSTER),
    "Cluster.ReassignPartitions": ({"reassignments": [PARTITION]}, ADMINISTRATOR, CLUSTER),
    "Cluster.ElectLeaders": ({}, ADMINISTRATOR, CLUSTER),
    "Cluster.SetQuotas": ({}, ADMINISTRATOR, CLUSTER),
    "Cluster.DeleteQuotas": ({"names": ["none"]}, ADMINISTRATOR, CLUSTER),
    "Cluster.DescribeQuotas": ({}, ADMINISTRATOR, CLUSTER),
    "Fetch.ListOffsets": ({"partitions": [{**PARTITION, "earliest": True}]}, SEERS, TOPIC),
    "Fetch.OffsetsForLeaderEpoch": ({"partitions": [PARTITION]}, SEERS, TOPIC),
    "Fetch.DescribeLags": (
        {
            "topic_ids": ["{id}"],
            "topics": [0],
            "partitions": [0],
            "current_leader_epochs": [-1],
            "offsets": [0],
        },
        SEERS,
        TOPIC,
    ),
    "Groups.GroupHeartbeat": ({"group": "{ns}/readers"}, {"consumer", "owner"}, GROUP),
    "Groups.LeaveGroup": ({"group": "{ns}/readers"}, {"consumer", "owner"}, GROUP),
    "Groups.DescribeGroup": ({"group": "{ns}/readers"}, SEERS, GROUP),
    "Positions.ResolveInitial": ({"name": "{ns}/readers"}, {"consumer", "owner"}, GROUP),
    "Positions.CommitPositions": ({"name": "{ns}/readers"}, {"consumer", "owner"}, GROUP),
    "Positions.FetchPositions": ({"name": "{ns}/readers", "kind": 2}, SEERS, GROUP),
    "Positions.ListNames": ({}, KNOWN, ""),
    "Positions.ForgetTopics": ({"name": "{ns}/none"}, OWNER, GROUP),
    "Positions.DeletePositions": ({"name": "{ns}/none"}, OWNER, GROUP),
    "Produce.InitProducerId": (
        {"transactional_id": "{ns}/copy", "transaction_timeout_ms": 60_000},
        {"producer", "owner"},
        ID,
    ),
    "Transactions.EndTransaction": (
        {"transactional_id": "{ns}/copy"},
        {"producer", "owner"},
        ID,
    ),
    "Transactions.ListTransactions": ({}, KNOWN, ""),
    "Transactions.DescribeTransaction": ({"transactional_id": "{ns}/copy"}, SEERS, ID),
    "Transactions.AbortTransaction": ({"transactional_id": "{ns}/copy"}, OWNER, ID),
    "Transactions.ListOpenTransactions": (PARTITION, SEERS, TOPIC),
    "Transactions.AbortOpenTransaction": (PARTITION, ADMINISTRATOR, CLUSTER),
    "SharedTransactions.OpenSharedTransaction": (
        {"transactional_id": "{ns}/app", "run_id": "r"},
        {"producer", "owner"},
        ID,
    ),
    "SharedTransactions.JoinSharedTransaction": (
        {"transactional_id": "{ns}/app"},
        {"producer", "owner"},
        ID,
    ),
    "SharedTransactions.RenewSharedTransaction": (
        {"transactional_id": "{ns}/app"},
        {"producer", "owner"},
        ID,
    ),
    "SharedTransactions.EndSharedTransaction": (
        {"transactional_id": "{ns}/app"},
        {"producer", "owner"},
        ID,
    ),
    "SharedTransactions.ForgetVersion": ({"transactional_id": "{ns}/app"}, OWNER, ID),
}
"""Each call: a request, who may make it in the namespace `team`, and the error of others."""

STREAMS = {"Produce.Produce": {"producer", "owner"}, "Fetch.Fetch": {"consumer", "owner"}}


def methods() -> dict[str, Any]:
    """Return the methods that clients call, by name, from the `.proto`."""
    modules = [
        import_module(f"millrace.proto.v1.{name}_pb2")
        for name in (*SERVICES, "shared_transactions")
    ]
    return {
        f"{service.name}.{method.name}": method
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    settings: dict[str, object] = {"logging.audit_lines_max": 100_000}
    running = GuardedBroker(tmp_path_factory.mktemp("guarded"), settings)
    try:
        running.start()
        yield running
    finally:
        running.abandon()


@pytest.fixture(scope="module")
def client(broker: GuardedBroker) -> Iterator[RawClient]:
    with RawClient(broker.address) as raw:
        yield raw


@pytest.fixture(scope="module")
def topics(client: RawClient) -> dict[str, TopicId]:
    """The id of the topic `orders` in each namespace."""
    create = methods()["Cluster.CreateTopics"]
    names = ("team", "other")
    request = GetMessageClass(create.input_type)(
        topics=[{"name": f"{ns}/orders", "partitions": 1} for ns in names]
    )
    response, refused = call(client.channel, create, request, authorization("root"))
    assert not refused
    ids = [TopicId(result.topic.topic_id) for result in response.results]
    return dict(zip(names, ids, strict=True))


def filled(said: Any, namespace: str, topic_id: TopicId) -> Any:
    """Return a request's fields with the names of a namespace."""
    match said:
        case "{id}":
            return topic_id
        case str():
            return said.replace("{ns}", namespace)
        case dict():
            return {key: filled(value, namespace, topic_id) for key, value in said.items()}
        case list():
            return [filled(value, namespace, topic_id) for value in said]
    return said


def request_for(method: Any, said: dict[str, Any], namespace: str, topic_id: TopicId) -> Message:
    made: Message = GetMessageClass(method.input_type)(**filled(said, namespace, topic_id))
    return made


def test_each_call_of_the_protocol_has_a_row() -> None:
    assert methods().keys() == TABLE.keys() | STREAMS.keys()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", TABLE)
def test_each_call_is_for_its_roles_alone(
    client: RawClient, topics: dict[str, TopicId], name: str, role: str
) -> None:
    said, allowed, error = TABLE[name]
    method = methods()[name]
    for namespace, topic_id in topics.items():
        may = role in allowed
        if namespace == "other" and error not in ("", CLUSTER):
            may = may and role == "administrator"
        request = request_for(method, said, namespace, topic_id)
        _, refused = call(client.channel, method, request, authorization(role))
        expected = set() if may else {UNKNOWN if role == "nobody" else error}
        assert refused == expected, (namespace, role)


@pytest.mark.parametrize("role", ROLES)
def test_a_stream_of_records_is_answered_topic_by_topic(
    client: RawClient, topics: dict[str, TopicId], role: str
) -> None:
    metadata = authorization(role)
    partitions = [TopicPartition(topic_id, 0) for topic_id in topics.values()]
    writing = RawStream(client.channel, PRODUCE, metadata=metadata)
    reading = RawStream(client.channel, FETCH, metadata=metadata)
    if role == "nobody":
        for stream in (writing, reading):
            assert stream.ended_with() is grpc.StatusCode.UNAUTHENTICATED
        return
    writing.send(request_of(*((partition, batch_of(partition)) for partition in partitions)))
    writing.half_close()
    (answer,) = writing.all_answers()
    codes = [common_pb2.ErrorCode.Name(result.error.code) for result in answer.results]
    may = role in STREAMS["Produce.Produce"]
    assert codes == [
        "ERROR_CODE_UNSPECIFIED" if may else f"ERROR_CODE_{TOPIC}",
        f"ERROR_CODE_{TOPIC}",
    ]
    request = fetch_pb2.FetchRequest(
        settings={"response_bytes_max": 1 << 20, "window_bytes": 1 << 20},
        credit_bytes=1 << 20,
        partitions=[
            {
                "handle": number,
                "topic_id": partition.topic_id,
                "max_bytes": 1 << 20,
                "current_leader_epoch": -1,
                "last_fetched_epoch": -1,
                "end_offset": -1,
                "verify_until": -1,
            }
            for number, partition in enumerate(partitions)
        ],
    )
    reading.send(request.SerializeToString())
    found: dict[int, Any] = {}
    may = role in STREAMS["Fetch.Fetch"]
    while 1 not in found or 0 not in found:
        header, _ = decode_fetch_response(reading.receive())
        found |= {described.handle: described for described in header.partitions}
    for handle, is_allowed in ((0, may), (1, False)):
        code = found[handle].error.code
        assert (code == common_pb2.ERROR_CODE_UNSPECIFIED) is is_allowed
        if not is_allowed:
            assert code == common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED
            assert found[handle].high_watermark == 0, "nothing is told of its log"
            names_it = "orders" in found[handle].error.message
            assert names_it is (handle == 0 or role == "administrator"), "who may see it"
    reading.cancel()


def test_transactional_batches_demand_the_id(client: RawClient, topics: dict[str, TopicId]) -> None:
    partition = TopicPartition(topics["team"], 0)
    for name in ("team/copy", "other/copy", "copy"):
        stream = RawStream(client.channel, PRODUCE, metadata=authorization("producer"))
        stream.send(request_of((partition, batch_of(partition)), transactional_id=name))
        stream.half_close()
        (answer,) = stream.all_answers()
        expected = common_pb2.ERROR_CODE_TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (answer.error.code == expected) is (name != "team/copy")


def test_who_may_not_see_a_topic_cannot_tell_whether_it_is_there(
    client: RawClient, topics: dict[str, TopicId]
) -> None:
    assert topics
    method = methods()["Cluster.GetMetadata"]
    said = {"topics": ["other/orders", "other/nothing", "team/orders", "team/nothing"]}
    request = GetMessageClass(method.input_type)(**said)
    response, _ = call(client.channel, method, request, authorization("consumer"))
    there, away, seen, missing = response.topics
    assert there.error.message.replace("orders", "nothing") == away.error.message
    assert there.error.code == away.error.code == common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED
    assert not there.topic_id
    assert not there.partitions
    assert not seen.error.code
    assert missing.error.code == common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION


def test_an_error_about_an_id_names_no_topic_that_the_caller_may_not_see(
    client: RawClient, topics: dict[str, TopicId]
) -> None:
    commit = methods()["Positions.CommitPositions"]
    wrong = {"topic_id": "{id}", "partition": 4711}
    twice = {"topic_id": "{id}", "partition": 0}
    for namespace, is_named in (("team", True), ("other", False)):
        for places in ([wrong], [twice, twice]):
            said = {"name": "team/r", "positions": [{"topic_partition": place} for place in places]}
            request = request_for(commit, said, "", topics[namespace])
            response, _ = call(client.channel, commit, request, authorization("consumer"))
            assert response.error.code
            assert (f"{namespace}/orders" in response.error.message) is is_named


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "Cluster.DeleteRecords": {"partitions": [PARTITION]},
        "Transactions.ListOpenTransactions": PARTITION,
        **{
            f"Cluster.{verb}Topics": {"topics": [{"topic_id": "{id}"}]}
            for verb in ("Alter", "Delete", "Undelete", "Purge")
        },
    }.items(),
)
def test_the_refusal_of_an_id_names_no_topic_that_the_caller_may_not_see(
    client: RawClient, topics: dict[str, TopicId], name: str, said: dict[str, Any]
) -> None:
    method = methods()[name]
    for namespace, topic_id in topics.items():
        request = request_for(method, said, namespace, topic_id)
        text = refusal_text(client, method, request, "describer")
        is_seen = namespace == "team"
        if name == "Transactions.ListOpenTransactions" and is_seen:
            assert not text, "it may describe the topic, and is refused nothing"
        else:
            assert ("orders" in text) is is_seen, text


def test_a_refusal_repeats_a_name_that_the_request_has(
    client: RawClient, topics: dict[str, TopicId]
) -> None:
    delete = methods()["Cluster.DeleteTopics"]
    named = request_for(delete, {"topics": [{"name": "other/orders"}]}, "", TopicId(b""))
    assert "'other/orders'" in refusal_text(client, delete, named, "describer")
    both = {"topics": [{"name": "team/mine", "topic_id": "{id}"}]}
    text = refusal_text(client, delete, request_for(delete, both, "", topics["other"]), "owner")
    assert "may not delete the topic:" in text


def refusal_text(client: RawClient, method: Any, request: Message, role: str) -> str:
    """Return what a caller is told of the refusal of its whole call; empty: it is not refused."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    ask: Any = client.channel.unary_unary(path)
    try:
        ask(request.SerializeToString(), timeout=20, metadata=authorization(role))
    except grpc.RpcError as error:
        failed: Any = error
        refused = error_from_trailers(failed.trailing_metadata() or (), failed.details() or "")
        assert refused is not None
        return refused.message
    return ""


def test_listings_have_what_the_caller_may_see(
    client: RawClient, topics: dict[str, TopicId]
) -> None:
    assert topics
    heartbeat = methods()["Groups.GroupHeartbeat"]
    for group in ("team/one", "other/two"):
        request = request_for(
            heartbeat,
            {"group": group, "member_id": "m", "member": {"topics": ["team/orders"]}},
            "",
            TopicId(b""),
        )
        _, refused = call(client.channel, heartbeat, request, authorization("root"))
        assert not refused
    begin = methods()["Produce.InitProducerId"]
    for name in ("team/mine", "other/theirs"):
        said = {"transactional_id": name, "transaction_timeout_ms": 60_000}
        _, refused = call(
            client.channel, begin, request_for(begin, said, "", TopicId(b"")), authorization("root")
        )
        assert not refused

    def listed(name: str, role: str, field: str) -> set[str]:
        method = methods()[name]
        found: set[str] = set()
        part, parts = 0, 1
        while part < parts:
            response, refused = call(
                client.channel,
                method,
                GetMessageClass(method.input_type)(partition=part),
                authorization(role),
            )
            assert not refused
            parts, part = response.partitions, part + 1
            found |= {
                getattr(entry, "transactional_id", entry) for entry in getattr(response, field)
            }
        return found

    assert "team/one" in listed("Positions.ListNames", "consumer", "names")
    assert "other/two" not in listed("Positions.ListNames", "consumer", "names")
    assert {"team/one", "other/two"} <= listed("Positions.ListNames", "administrator", "names")
    assert listed("Transactions.ListTransactions", "consumer", "transactions") >= {"team/mine"}
    assert "other/theirs" not in listed("Transactions.ListTransactions", "consumer", "transactions")
    assert "other/theirs" in listed("Transactions.ListTransactions", "root", "transactions")

    def topics_of(role: str) -> set[str]:
        method = methods()["Cluster.GetMetadata"]
        request = GetMessageClass(method.input_type)()
        response, _ = call(client.channel, method, request, authorization(role))
        assert response.brokers
        return {topic.name for topic in response.topics}

    assert topics_of("consumer") == {"team/orders"}
    assert topics_of("administrator") == {"team/orders", "other/orders"}
    assert topics_of("root") > {"team/orders", "other/orders", "__positions"}


def test_a_refusal_is_in_the_audit_log_with_who_and_what(
    broker: GuardedBroker, client: RawClient
) -> None:
    method = methods()["Cluster.DrainBroker"]
    request = GetMessageClass(method.input_type)(broker_id=4711)
    call(client.channel, method, request, authorization("owner"))
    said = [json.loads(line) for line in broker.log_path.read_text().splitlines()]
    refused = [
        line
        for line in said
        if line.get("event") == "caller_refused" and line["principal"] == "owner"
    ]
    assert any(
        line["method"] == "DrainBroker"
        and line["error"].startswith("'owner' may not administer the cluster: ask")
        for line in refused
    )


BAD_TOKENS = {
    "unknown": [("authorization", "Bearer " + "x" * 40)],
    "no bearer": [("authorization", "Basic " + "x" * 40)],
    "empty": [("authorization", "Bearer ")],
    "short": [("authorization", "Bearer x")],
    "two words": [("authorization", f"Bearer {'x' * 20} {'y' * 20}")],
    "two headers": authorization("root") * 2,
    "a good one and a bad one": [*authorization("root"), ("authorization", "Bearer " + "x" * 40)],
    "long": [("authorization", "Bearer " + "x" * 7_000)],
    "another principal beside": [("authorization", "Bearer root"), ("millrace-principal", "root")],
}


@pytest.mark.parametrize("metadata", BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
def test_a_bad_token_is_refused_without_a_reason(
    broker: GuardedBroker, client: RawClient, metadata: list[tuple[str, str]]
) -> None:
    hello: Any = client.channel.unary_unary("/millrace.proto.v1.Cluster/Hello")
    with pytest.raises(grpc.RpcError) as refused:
        hello(b"", timeout=10, metadata=metadata)
    failed: Any = refused.value
    assert failed.code() is grpc.StatusCode.UNAUTHENTICATED
    error = error_from_trailers(failed.trailing_metadata(), failed.details())
    assert error is not None
    assert error.message.startswith("this broker does not accept the token: ask who runs")
    for method in (PRODUCE, FETCH):
        stream = RawStream(client.channel, method, metadata=metadata)
        assert stream.ended_with() is grpc.StatusCode.UNAUTHENTICATED
    assert broker.log_has("credential_refused")
    assert not broker.log_has("x" * 20), "no token is in the log"


def test_a_token_is_no_way_around_the_limit_of_metadata(client: RawClient) -> None:
    hello: Any = client.channel.unary_unary("/millrace.proto.v1.Cluster/Hello")
    with pytest.raises(grpc.RpcError) as refused:
        hello(b"", timeout=10, metadata=[("authorization", "Bearer " + "x" * (17 << 10))])
    failed: Any = refused.value
    assert failed.code() in (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
    )
    _, refusals = call(
        client.channel,
        methods()["Cluster.Hello"],
        common_pb2.HelloRequest(),
        authorization("owner"),
    )
    assert not refusals


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FLOOD_TOKENS = 20_000
"""Unique ones, as fast as one process sends them."""
FLOOD_BYTES_MAX = 48 << 20


@pytest.mark.timeout(180)
def test_a_flood_of_unique_bad_tokens_costs_no_memory_and_others_are_served(
    broker: GuardedBroker, client: RawClient, topics: dict[str, TopicId]
) -> None:
    """Each is refused before its request is decoded, and nothing is remembered of it.

    Who is refused again and again is cut off, and may connect again.
    """
    hello: Any = client.channel.unary_unary("/millrace.proto.v1.Cluster/Hello")
    with pytest.raises(grpc.RpcError):
        hello(b"", timeout=10, metadata=[("authorization", "Bearer " + "z" * 40)])
    before = resident_bytes(broker.pid)
    waits: list[float] = []
    ends: set[grpc.StatusCode] = set()
    with RawClient(broker.address) as hostile, RawClient(broker.address) as honest:
        flood: Any = hostile.channel.unary_unary("/millrace.proto.v1.Cluster/Hello")
        under_way: deque[Any] = deque()
        for number in range(FLOOD_TOKENS):
            token = f"Bearer {number:040}"
            under_way.append(flood.future(b"", timeout=60, metadata=[("authorization", token)]))
            if len(under_way) >= 32:
                ends.add(under_way.popleft().code())
            if number % 200 == 0:
                request = GetMetadataRequest(topics=["team/orders"])
                begun = time.monotonic()
                response = honest.cluster.GetMetadata(
                    request, timeout=20, metadata=authorization("consumer")
                )
                waits.append(time.monotonic() - begun)
                assert response.topics[0].topic_id == topics["team"]
        for call_under_way in under_way:
            ends.add(call_under_way.code())
    assert ends == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
    assert resident_bytes(broker.pid) - before < FLOOD_BYTES_MAX
    # One pause of the machine makes one of them long.
    assert sorted(waits)[len(waits) * 9 // 10] < 2.0, "others wait"
