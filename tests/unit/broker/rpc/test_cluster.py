"""Clients' requests for the controller: refused at once, or passed on as they came."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.fakes.call_context import CallContext, calls_of, serve_call
from tests.fakes.cluster import Cluster
from tests.fakes.quotas import no_quotas

from millrace.broker.controller.channel import ForwardedRequest
from millrace.broker.rpc.calls import ServiceMethods
from millrace.broker.rpc.cluster import ClusterService
from millrace.core.broker_config import LimitsConfig
from millrace.core.controller.request_limits import QUOTAS_AT_ONCE_MAX
from millrace.core.errors import AccessUndecidedError
from millrace.core.ids import BrokerId
from millrace.core.metadata.broker_levels import KAFKA_BATCHES
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Listener, SideAddresses
from millrace.core.topics import TopicName
from millrace.proto.codec import field_of
from millrace.proto.features import CLIENT_PROTOCOL
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1 import controller_pb2
from millrace.proto.v1.common_pb2 import HelloRequest, HelloResponse
from millrace.runtime.turns import FREE_ENTRIES, SLICE_SECONDS, Turns

SERVICE = pb.DESCRIPTOR.services_by_name["Cluster"]
MAX = 7
"""Topics and partitions in a request."""


class Channel:
    """A session with a controller that notes what it is asked, and does all of it."""

    config = ClusterConfig(request_topics_max=MAX, request_partitions_max=MAX)
    metadata = SimpleNamespace(epoch=3)

    def __init__(self) -> None:
        self.forwarded: list[tuple[str, bytes]] = []

    async def forward(self, kind: ForwardedRequest, request: bytes, _: object) -> Any:
        self.forwarded.append((kind.name, request))
        return controller_pb2.ControllerResponse()


class Partitions:
    """Partitions of a broker that has applied all metadata."""

    async def settled(self) -> None:
        pass


def handlers(
    channel: Any, listener: Listener = Listener.CLIENTS, drpc_address: str = ""
) -> ServiceMethods:
    """Return what serves clients."""
    return service_of(channel, listener, drpc_address).methods()


def service_of(
    channel: Any, listener: Listener = Listener.CLIENTS, drpc_address: str = ""
) -> ClusterService:
    """Return the service."""
    partitions: Any = Partitions()
    config: Any = SimpleNamespace(limits=LimitsConfig())
    return ClusterService(
        broker_id=BrokerId(0),
        channel=channel,
        partitions=partitions,
        config=config,
        turns=Turns(),
        quotas=no_quotas(),
        calls=calls_of(listener),
        drpc_address=lambda: drpc_address,
    )


def asked(channel: Any, method: str, request: bytes) -> CallContext:
    """Make a call of a client."""
    context = CallContext()
    asyncio.run(serve_call(handlers(channel), f"/{SERVICE.full_name}/{method}", context, request))
    return context


def entries(method: str, count: int) -> bytes:
    """Return a request with so many empty entries."""
    kind = SERVICE.methods_by_name[method].input_type
    (field,) = (field for field in kind.fields if field.is_repeated)
    return field_of(field.number, b"") * count


@pytest.mark.parametrize(
    ("method", "most", "words"),
    [
        *(
            (f"{verb}Topics", MAX, f"{MAX + 1} topics are too many")
            for verb in ("Create", "Alter", "Delete", "Undelete", "Purge")
        ),
        ("ReassignPartitions", MAX, f"{MAX + 1} partitions are too many"),
        ("ElectLeaders", MAX, f"{MAX + 1} partitions are too many"),
        ("SetQuotas", QUOTAS_AT_ONCE_MAX, f"{QUOTAS_AT_ONCE_MAX + 1} quotas are too many"),
        ("DeleteQuotas", QUOTAS_AT_ONCE_MAX, f"{QUOTAS_AT_ONCE_MAX + 1} quotas are too many"),
    ],
)
def test_a_request_with_more_than_the_controller_takes_never_reaches_it(
    method: str, most: int, words: str
) -> None:
    channel = Channel()
    refused = asked(channel, method, entries(method, most + 1))
    assert not channel.forwarded
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert words in refused.details
    accepted = asked(channel, method, entries(method, most))
    assert accepted.status is None
    assert len(channel.forwarded) == 1


def test_a_request_is_passed_on_as_it_came() -> None:
    """A message that is decoded and encoded again has its fields in order, and each once."""
    odd = (
        bytes.fromhex("1001 1000 1001") + entries("CreateTopics", 2) + bytes.fromhex("1000 f81f01")
    )
    wire = GetMessageClass(SERVICE.methods_by_name["CreateTopics"].input_type)
    assert wire.FromString(odd).SerializeToString() != odd
    channel = Channel()
    assert asked(channel, "CreateTopics", odd).status is None
    assert channel.forwarded == [("create_topics", odd)]
    assert channel.forwarded[0][1] is odd


@pytest.mark.parametrize(
    ("listener", "addresses"),
    [(Listener.CLIENTS, ["a:7096", ""]), (Listener.OUTSIDE, ["203.0.113.5:9096", ""])],
)
async def test_clients_are_told_the_addresses_of_drpc_on_their_side(
    listener: Listener, addresses: list[str]
) -> None:
    cluster = Cluster(2)
    there = SideAddresses(clients="a:7096", outside="203.0.113.5:9096", brokers="a:7097")
    cluster.give_drpc_addresses(0, there)
    channel = SimpleNamespace(
        metadata=cluster.driver.image, controller_id=0, problem="", config=ClusterConfig()
    )
    serving = handlers(channel, listener, "own:7096")

    async def ask(method: str, request: Message) -> bytes:
        path, body = f"/{SERVICE.full_name}/{method}", request.SerializeToString()
        answer: bytes = await serve_call(serving, path, CallContext(), body)
        return answer

    metadata = await ask("GetMetadata", pb.GetMetadataRequest(brokers_only=True))
    described = pb.GetMetadataResponse.FromString(metadata)
    assert [broker.drpc_address for broker in described.brokers] == addresses
    # The broker says of itself what it knows: a controller of 0.2.0 tells nobody.
    hello = await ask("Hello", HelloRequest(features=[CLIENT_PROTOCOL]))
    assert HelloResponse.FromString(hello).drpc_address == "own:7096"


async def test_a_topic_of_which_the_right_is_not_decided_is_not_left_out_of_all() -> None:
    """An operator would delete the claims of brokers that seem to hold nothing any more."""

    class Caller:
        """One who may see a topic, of which nobody knows now."""

        principal = "operator"
        learned: ClassVar[list[bool]] = []

        async def learn(self, _: object, resources: Any, *, all_needed: bool) -> None:
            assert len(list(resources)) == 1
            self.learned.append(all_needed)

        def sees(self, *_: object, none_hidden: bool) -> bool:
            if none_hidden:
                raise AccessUndecidedError("ask again")
            return False

    cluster = Cluster(1)
    cluster.create(replication_factor=1)
    channel: Any = SimpleNamespace(
        metadata=cluster.driver.image, controller_id=0, problem="", config=ClusterConfig()
    )
    service = service_of(channel)
    caller: Any = Caller()
    assert not (await service._get_metadata(pb.GetMetadataRequest(), caller)).topics
    with pytest.raises(AccessUndecidedError):
        await service._get_metadata(pb.GetMetadataRequest(none_hidden=True), caller)
    assert caller.learned == [False, True]


def test_a_request_that_is_no_message_is_not_passed_on() -> None:
    """It would end the broker's session with the controller."""
    channel = Channel()
    assert asked(channel, "DrainBroker", b"\x08").status is grpc.StatusCode.INVALID_ARGUMENT
    assert not channel.forwarded


def test_others_get_turns_of_the_loop_while_many_deleted_topics_are_listed() -> None:
    def deleted_topics() -> Iterator[SimpleNamespace]:
        for number in range(FREE_ENTRIES + 20):
            until = time.monotonic() + SLICE_SECONDS
            while time.monotonic() < until:
                pass
            topic = SimpleNamespace(
                name=TopicName("default", f"t{number}"),
                topic_id=b"t" * 16,
                partitions=[],
                replication_factor=1,
            )
            yield SimpleNamespace(topic=topic, deleted_at=0)

    async def story() -> int:
        channel = SimpleNamespace(
            config=ClusterConfig(),
            metadata=SimpleNamespace(epoch=3, deleted_topics=deleted_topics),
        )
        path = f"/{SERVICE.full_name}/ListDeletedTopics"
        call = asyncio.create_task(serve_call(handlers(channel), path, CallContext(), b""))
        turns = 0
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(pb.ListDeletedTopicsResponse.FromString(await call).topics) == FREE_ENTRIES + 20
        return turns

    assert asyncio.run(story()) >= 19


def test_replicas_by_hand_are_refused_while_a_controller_might_overlook_them() -> None:
    for level in (KAFKA_BATCHES - 1, KAFKA_BATCHES):
        channel: Any = Channel()
        brokers = {0: SimpleNamespace(name="old", level=level)}
        channel.metadata = SimpleNamespace(epoch=3, cluster=SimpleNamespace(brokers=brokers))
        assignment = [pb.NewReplicas(replicas=[0])]
        by_hand = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", assignment=assignment)])
        more = pb.AlterTopicsRequest(topics=[pb.TopicChange(name="t", assignment=assignment)])
        asked(channel, "CreateTopics", by_hand.SerializeToString())
        asked(channel, "AlterTopics", more.SerializeToString())
        plain = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")])
        asked(channel, "CreateTopics", plain.SerializeToString())
        known = ["create_topics", "alter_topics"] if level == KAFKA_BATCHES else []
        assert [name for name, _ in channel.forwarded] == [*known, "create_topics"]
