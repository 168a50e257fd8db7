"""Groups of strangers: names, members and numbers without sense, and more of each than fits."""

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    GroupFullError,
    InvalidGroupError,
    InvalidPositionError,
    InvalidRequestError,
    MillraceError,
    Position,
    SyncAdmin,
    SyncConsumer,
)
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import groups_pb2 as pb
from millrace.proto.v1 import groups_pb2_grpc

STRANGE_NAMES = ("../../etc/passwd", "a/b", "..", ".", "%2e%2e", "C:\\x", "日本語", "-", "'; --")
NO_NAMES = ("", " ", "\n", "a\nb", "a\0b", "\x1b[31m", "x" * 256, "x" * 10_240, "é" * 128, "\u202e")


class Stranger:
    """Speaks the protocol, and keeps to none of its manners."""

    def __init__(self, broker: RunningBroker) -> None:
        self.channel = grpc.insecure_channel(broker.address)
        self.stub: Any = groups_pb2_grpc.GroupsStub(self.channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def heartbeat(
        self, group: str, member_id: str, confirmed: int = 0, **member: Any
    ) -> pb.GroupHeartbeatResponse:
        said = pb.GroupMember(**{"topics": ["t"], "rebalance_timeout_ms": 60_000, **member})
        request = pb.GroupHeartbeatRequest(
            group=group, member_id=member_id, confirmed=confirmed, member=said
        )
        answer = pb.GroupHeartbeatResponse()

        def is_answered() -> bool:
            answer.CopyFrom(self.stub.GroupHeartbeat(request, timeout=20))
            return not answer.error.retriable

        wait_until(is_answered, "the coordinator is there")
        return answer

    def leave(self, group: str, member_id: str) -> None:
        self.stub.LeaveGroup(pb.LeaveGroupRequest(group=group, member_ids=[member_id]), timeout=20)

    def refusal(self, group: str, member_id: str, **others: Any) -> MillraceError:
        """Return why a heartbeat is refused."""
        answer = self.heartbeat(group, member_id, **others)
        assert answer.HasField("error"), "it was not refused"
        return error_from_wire(answer.error)


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    """A broker where little fits."""
    broker = start_broker(
        {
            "cluster.positions_partitions": 1,
            # Three hundred members join within it, also on a slow machine.
            "groups.session_timeout_ms": 20_000,
            "groups.heartbeat_interval_ms": 3_000,
            "groups.members_max": 300,
            "groups.partition_members_max": 700,
            "groups.partition_groups_max": 30,
            "groups.partition_subscriptions_max": 1_000,
            "positions.partition_positions_max": 2_100,
        }
    )
    broker.create_topic("t", partitions=4)
    return broker


def test_names_that_look_like_paths_are_names_and_others_are_refused(
    broker: RunningBroker,
) -> None:
    with SyncAdmin(broker.address) as admin, Stranger(broker) as stranger:
        for name in STRANGE_NAMES:
            admin.commit_positions(name, {("t", 0): Position(1)})
            assert not stranger.heartbeat(name, "m").HasField("error")
        assert sorted(group.name for group in admin.list_groups()) == sorted(STRANGE_NAMES)
        assert {str(path) for path in broker.folder.parent.rglob("*passwd*")} == set()
        for name in NO_NAMES:
            with pytest.raises(InvalidPositionError) as refused:
                admin.commit_positions(name, {("t", 0): Position(1)})
            assert len(str(refused.value)) < 2_000
            assert isinstance(stranger.refusal(name, "m"), InvalidGroupError)
        for name in NO_NAMES[1:]:
            with SyncConsumer(broker.address, group=name) as consumer:
                consumer.subscribe(["t"])
                with pytest.raises(InvalidGroupError):
                    consumer.poll(10_000)


def test_a_member_that_does_not_say_how_long_it_needs_has_time_to_confirm(
    broker: RunningBroker,
) -> None:
    with SyncAdmin(broker.address) as admin, Stranger(broker) as stranger:
        assert not stranger.heartbeat("g", "silent", rebalance_timeout_ms=0).HasField("error")
        assert not stranger.heartbeat("g", "hasty", rebalance_timeout_ms=1).HasField("error")

        def members() -> list[str]:
            group = admin.describe_group("g")
            return [] if group is None else [member.member_id for member in group.members]

        wait_until(lambda: "hasty" not in members(), "the broker looks for late members")
        assert members() == ["silent"]


def test_what_a_member_says_of_itself_has_bounds(broker: RunningBroker) -> None:
    with Stranger(broker) as stranger:
        assert isinstance(stranger.refusal("g", ""), InvalidGroupError)
        for member_id in ("a\nb", "x" * 256, "x" * 10_240):
            assert isinstance(stranger.refusal("g", member_id), InvalidGroupError)
        for said in (
            {"instance_id": "\0"},
            {"zone": "z" * 10_240},
            {"topics": ["../t"]},
            {"topics": [f"t{number}" for number in range(1_001)]},
            {"assignor": "mine"},
            {"pattern": "x" * 10_240},
            {"pattern": "(" * 100},
        ):
            assert isinstance(stranger.refusal("g", "m", **said), InvalidGroupError), said
        for confirmed in (-1, 1, 2**31 - 1, -(2**31)):
            refusal = stranger.refusal("g", "m", confirmed=confirmed)
            assert refusal.message.endswith("join again"), refusal
        assert not stranger.heartbeat("g", "m").HasField("error")


def test_what_exceeds_a_bound_is_refused_and_what_is_there_goes_on(broker: RunningBroker) -> None:
    def names(setting: str, join: Callable[[], MillraceError]) -> None:
        refusal = join()
        assert isinstance(refusal, GroupFullError), refusal
        assert f"groups.{setting}" in refusal.message

    with Stranger(broker) as stranger:
        many = [f"t{number}" for number in range(600)]
        assert not stranger.heartbeat("g", "m", topics=many).HasField("error")
        names("partition_subscriptions_max", lambda: stranger.refusal("g", "n", topics=many))
        for number in range(29):
            assert not stranger.heartbeat(f"group {number}", "m", topics=[]).HasField("error")
        names("partition_groups_max", lambda: stranger.refusal("one more", "m"))
        assert not stranger.heartbeat("g", "m", 1, topics=many).HasField("error")


def test_members_that_join_and_are_silent_are_gone_after_their_session(
    broker: RunningBroker,
) -> None:
    with SyncAdmin(broker.address) as admin, Stranger(broker) as stranger:
        for number in range(300):
            assert not stranger.heartbeat("g", f"m{number:03}", topics=[]).HasField("error")
            if number % 100 == 0:
                stranger.heartbeat("other", "alive")
        assert isinstance(stranger.refusal("g", "one more"), GroupFullError)
        described = admin.describe_group("g")
        assert described is not None
        assert sorted(member.member_id for member in described.members) == [
            f"m{number:03}" for number in range(300)
        ], "more members than one answer has"
        slowest = 0.0

        def are_gone() -> bool:
            nonlocal slowest
            began = time.monotonic()
            assert not stranger.heartbeat("other", "alive").HasField("error")
            slowest = max(slowest, time.monotonic() - began)
            left = admin.describe_group("g")
            return left is None or not left.members

        wait_until(are_gone, "their sessions have ended", seconds=60)
        assert slowest < 10, "others are served meanwhile"
        owned = stranger.heartbeat("g", "the next")
        assert [list(assigned.partitions) for assigned in owned.assigned] == [[0, 1, 2, 3]]


def test_a_member_that_comes_with_many_gets_its_partitions_without_another_heartbeat(
    start_broker: StartBroker,
) -> None:
    """The target of a group of 400 members waits for 40 ms after the one before."""
    seconds = 20
    broker = start_broker(
        {"groups.session_timeout_ms": 60_000, "groups.heartbeat_interval_ms": 1_000 * seconds}
    )
    with SyncAdmin(broker.address) as admin, Stranger(broker) as stranger:
        admin.create_topic("t", partitions=4)
        for number in range(400):
            stranger.heartbeat("g", f"m{number:03}", topics=[])
        for number in range(5):
            member_id = f"late {number}"
            joined = stranger.heartbeat("g", member_id)
            if joined.assigned:  # The interval was over just then.
                stranger.leave("g", member_id)
                continue
            request = pb.GroupHeartbeatRequest(
                group="g", member_id=member_id, confirmed=1, wait_ms=1_000 * seconds
            )
            began = time.monotonic()
            answer = stranger.stub.GroupHeartbeat(request, timeout=2 * seconds)
            assert [list(assigned.partitions) for assigned in answer.assigned] == [[0, 1, 2, 3]]
            assert time.monotonic() - began < seconds / 2, "it did not wait for the whole time"
            stranger.leave("g", member_id)


def test_more_names_are_listed_than_fit_into_an_answer(broker: RunningBroker) -> None:
    with SyncAdmin(broker.address) as admin, Stranger(broker) as stranger:
        names = [f"reader {number:04}" for number in range(2_050)]
        for name in names:
            admin.commit_positions(name, {("t", 0): Position(1)})
        stranger.heartbeat("group", "m")
        assert [group.name for group in admin.list_groups()] == ["group", *names]


def test_numbers_that_no_record_has_are_refused(broker: RunningBroker) -> None:
    with (
        SyncAdmin(broker.address) as admin,
        SyncConsumer(broker.address, group="g") as consumer,
        SyncConsumer(broker.address) as reader,
    ):
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(100) is not None and consumer.assignment(), "it owns all")
        reader.assign(["t"])
        for number in (2**63, -(2**63) - 1, 2**70):
            with pytest.raises(InvalidRequestError):
                admin.list_offsets("t", number)
            with pytest.raises(InvalidRequestError):
                reader.seek_to_time(number)
            with pytest.raises(InvalidRequestError):
                reader.seek(("t", 0), number)
            with pytest.raises(InvalidPositionError):
                admin.commit_positions("q", {("t", 0): Position(number)})
            with pytest.raises(InvalidRequestError):
                consumer.commit({("t", 0): number})
        for timestamp in (-1, -(2**63) + 1, 2**63 - 1):
            found = admin.list_offsets("t", timestamp)["t", 0]
            assert found.offset == (-1 if timestamp > 0 else found.offset)
        with pytest.raises(InvalidPositionError):
            admin.commit_positions("q", {("t", 0): Position(5, 2**31)})
        assert admin.list_groups()[0].name == "g"
