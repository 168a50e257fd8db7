"""What a coordinator keeps of groups and positions together, and for how long."""

import pytest
from tests.fakes.topics_view import Topics

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_events import (
    Answer,
    Committer,
    Effect,
    JoinRequest,
    Refusal,
    Refused,
)
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.coordinator.groups.classic_records import ClassicMember, Generation
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import GroupCoordinator, NameKind, Summary
from millrace.core.coordinator.groups.group import JOINING, Member
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.coordinator.positions.position import Kind, Position, PositionsConfig
from millrace.core.errors import (
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    InvalidGroupError,
    UnknownMemberIdError,
)
from millrace.core.ids import MonotonicMs, Offset, TopicId, TopicPartition, WallMs

TOPIC_ID, OTHER_ID = TopicId(b"t" * 16), TopicId(b"u" * 16)
HERE, GONE = TopicPartition(TOPIC_ID, 0), TopicPartition(OTHER_ID, 0)
RETENTION_MS = 1_000_000


TOPICS = Topics({"orders": TOPIC_ID, "others": OTHER_ID})
READER, BOTH = Member(topics=("orders",)), Member(topics=("orders", "others"))


class Kept:
    """A coordinator whose records are stored at once."""

    def __init__(self, left_topic_retention_ms: int = -1) -> None:
        config = PositionsConfig(
            retention_ms=RETENTION_MS, left_topic_retention_ms=left_topic_retention_ms
        )
        self.machine = GroupCoordinator(config, GroupsConfig(), Offset(0))

    def store(self, result: Result) -> None:  # type: ignore[type-arg]
        for record in result.records:
            self.machine.replay(record, self.machine.next_offset)

    def join(self, name: str, at: int, member: Member = READER, *, member_id: str = "m") -> None:
        heartbeat = Heartbeat(member_id, JOINING, member)
        self.store(self.machine.handle_heartbeat(name, heartbeat, TOPICS, WallMs(at)))

    def leave(self, name: str, at: int, *, member_id: str = "m") -> None:
        self.store(self.machine.handle_leave(name, [member_id], TOPICS, WallMs(at)))

    def commit(
        self, name: str, place: TopicPartition, at: int, offset: int = 1, **member: object
    ) -> None:
        positions = {place: Position(offset)}
        self.store(self.machine.handle_commit(name, positions, WallMs(at), **member))  # type: ignore[arg-type]

    def expire(self, at: int, *topic_ids: TopicId) -> None:
        """Forget what is old; these topics are there, or may come back."""

        def exists(topic_id: TopicId) -> bool:
            return topic_id in (TOPIC_ID, *topic_ids)

        names = self.machine.names()
        self.store(self.machine.handle_expire(names, WallMs(at), exists, TOPICS))

    def forget(self, name: str, *topic_ids: TopicId) -> None:
        self.store(self.machine.handle_forget_topics(name, topic_ids, TOPICS, WallMs(0)))


def test_a_group_with_members_keeps_its_positions_however_old_they_are() -> None:
    kept = Kept()
    kept.join("g", 0)
    kept.commit("g", HERE, 0, member_id="m", epoch=1)
    kept.expire(10 * RETENTION_MS)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_a_group_keeps_its_positions_for_a_while_after_its_last_member_left() -> None:
    kept = Kept()
    kept.join("g", 0)
    kept.commit("g", HERE, 0, member_id="m", epoch=1)
    kept.leave("g", 5 * RETENTION_MS)
    kept.expire(6 * RETENTION_MS)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}
    kept.expire(6 * RETENTION_MS + 1)
    kept.expire(6 * RETENTION_MS + 1)
    assert kept.machine.names() == []


def test_an_empty_group_without_positions_is_forgotten_at_once() -> None:
    kept = Kept()
    kept.join("g", 0)
    kept.leave("g", 1)
    assert kept.machine.names() == ["g"]
    kept.expire(2)
    assert kept.machine.names() == []
    assert kept.machine.membership.groups == {}


def test_a_commit_of_a_member_that_comes_late_changes_nothing() -> None:
    kept = Kept()
    kept.join("g", 0)
    member: dict[str, object] = {"member_id": "m", "epoch": 1}
    kept.commit("g", HERE, 0, offset=9, number=2, **member)
    kept.commit("g", HERE, 0, offset=5, number=1, **member)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(9)}
    kept.commit("g", HERE, 0, offset=5, **member)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(5)}


def test_positions_of_deleted_topics_go_although_the_group_has_members() -> None:
    kept = Kept()
    kept.commit("g", GONE, 0)
    kept.commit("g", HERE, 0)
    kept.join("g", 0)
    kept.expire(RETENTION_MS + 1)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_a_group_forgets_a_topic_that_its_members_have_left_and_no_other_one() -> None:
    kept = Kept(left_topic_retention_ms=1_000)
    other = TopicPartition(OTHER_ID, 1)
    for place, at in ((HERE, 0), (GONE, 0), (other, 500)):
        kept.commit("g", place, at)
    kept.expire(100_000, OTHER_ID)
    assert len(kept.machine) == 3, "without members any topic may be read again"
    kept.join("g", 0, BOTH)
    kept.expire(100, OTHER_ID)
    kept.leave("g", 200)
    kept.join("g", 200)
    kept.expire(1_201)
    assert len(kept.machine) == 3, "a deleted topic may come back"
    kept.join("g", 400, BOTH)
    kept.leave("g", 450)
    kept.join("g", 450)
    kept.expire(1_451, OTHER_ID)
    assert len(kept.machine) == 3, "of a topic all positions are forgotten, or none"
    kept.expire(1_501, OTHER_ID)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_a_group_keeps_the_positions_of_a_reader_that_restarts_however_old_they_are() -> None:
    kept = Kept(left_topic_retention_ms=1_000)
    kept.commit("g", GONE, 0)
    kept.join("g", 0)
    kept.join("g", 0, BOTH, member_id="other")
    kept.leave("g", 50_000, member_id="other")
    kept.expire(50_500, OTHER_ID)
    assert GONE in kept.machine.positions("g", Kind.COMMITTED)
    kept.join("g", 50_600, BOTH, member_id="other")
    kept.expire(60_000, OTHER_ID)
    assert GONE in kept.machine.positions("g", Kind.COMMITTED)


def test_a_topic_that_an_earlier_release_saw_a_group_leave_counts_as_left_now() -> None:
    kept = Kept(left_topic_retention_ms=1_000)
    kept.commit("g", HERE, 0)
    kept.commit("g", GONE, 0)
    kept.join("g", 0)
    kept.expire(50_000, OTHER_ID)
    kept.expire(51_000, OTHER_ID)
    assert len(kept.machine) == 2
    kept.expire(51_001, OTHER_ID)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}
    kept.expire(51_001, OTHER_ID)
    assert kept.machine.membership.groups["g"].epochs.left == ()


def test_positions_of_topics_are_forgotten_when_somebody_says_so() -> None:
    kept = Kept()
    kept.commit("g", HERE, 0)
    kept.commit("g", GONE, 0)
    kept.store(kept.machine.handle_resolve_initial("g", {GONE: Position(0)}, WallMs(0)))
    kept.commit("h", GONE, 0)
    kept.forget("g", OTHER_ID)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}
    assert kept.machine.positions("g", Kind.INITIAL) == {}
    assert kept.machine.positions("h", Kind.COMMITTED) == {GONE: Position(1)}
    kept.forget("nobody", OTHER_ID)


@pytest.mark.parametrize("member", [Member(topics=("orders",)), Member(pattern="or.*")])
def test_a_topic_that_members_read_is_not_forgotten(member: Member) -> None:
    kept = Kept()
    kept.commit("g", HERE, 0)
    kept.commit("g", GONE, 0)
    kept.join("g", 0, member)
    with pytest.raises(GroupSubscribedToTopicError, match="read 1 of the topics"):
        kept.forget("g", TOPIC_ID, OTHER_ID)
    kept.forget("g", OTHER_ID)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_a_name_says_what_keeps_it() -> None:
    kept = Kept()
    kept.join("group", 0)
    kept.commit("alone", HERE, 0)
    proposals = {HERE: Position(0)}
    kept.store(kept.machine.handle_resolve_initial("spark", proposals, WallMs(0)))
    kinds = {name: kept.machine.summary(name) for name in kept.machine.names()}
    assert kinds == {
        "alone": (NameKind.STANDALONE, 0),
        "group": (NameKind.CONSUMER, 1),
        "spark": (NameKind.SPARK, 0),
    }


def test_an_empty_group_reads_all_partitions_of_the_topics_in_which_it_has_a_position() -> None:
    kept = Kept()
    kept.join("g", at=0)
    kept.leave("g", at=0)
    assert kept.machine.reading("g", lambda _: 2) == {}
    kept.commit("g", HERE, at=0)
    assert kept.machine.reading("g", lambda _: 2) == {HERE: 1, TopicPartition(TOPIC_ID, 1): None}
    assert kept.machine.reading("g", lambda _: 0) == {HERE: 1}, "the topic is deleted"


def test_a_group_reads_what_it_owns_and_what_it_has_a_position_in() -> None:
    kept = Kept()
    kept.join("g", at=0)
    assert kept.machine.reading("g", lambda _: 1) == {HERE: None}
    kept.store(kept.machine.handle_resolve_initial("s", {HERE: Position(3)}, WallMs(0)))
    assert kept.machine.reading("s", lambda _: 2) == {HERE: 3}
    kept.commit("s", HERE, at=0)
    assert kept.machine.reading("s", lambda _: 2) == {HERE: 1}
    assert (kept.machine.group_names(), kept.machine.other_names()) == (["g"], ["s"])


# --- Groups of Kafka's classic protocol ------------------------------------------------------


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names


def generation(*member_ids: str, number: int = 1, says: bytes = b"") -> Generation:
    said = ClassicMember(session_timeout_ms=10_000, rebalance_timeout_ms=10_000, metadata=says)
    return Generation(number, "consumer", "range", "", dict.fromkeys(member_ids, said))


def kafka(name: str, *member_ids: str, says: bytes = b"", at: int = 0) -> Kept:
    """Return a coordinator of a classic group with these members."""
    kept = Kept()
    stored = generation(*member_ids, says=says)
    kept.store(kept.machine.handle_generation(name, stored, WallMs(at)))
    kept.machine.classic.restart(MonotonicMs(0))
    return kept


def test_a_group_of_kafka_with_members_refuses_those_of_millrace() -> None:
    """K11."""
    kept = kafka("g", "k")
    with pytest.raises(InvalidGroupError, match="speak Kafka's protocol"):
        kept.join("g", 0)
    assert kept.machine.summary("g") == Summary(NameKind.CONSUMER, 1)


def test_a_group_without_members_becomes_one_of_the_other_protocol() -> None:
    kept = kafka("g")
    kept.commit("g", HERE, 0)
    kept.join("g", 1)
    assert (kept.machine.classic.has("g"), "g" in kept.machine.membership.occupied) == (False, True)
    with pytest.raises(GroupNotEmptyError):
        kept.machine.handle_generation("g", generation("k"), WallMs(2))
    assert not kept.machine.handle_generation("g", generation(), WallMs(2)).records
    kept.leave("g", 3)
    kept.store(kept.machine.handle_generation("g", generation("k"), WallMs(4)))
    assert "g" not in kept.machine.membership.groups
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_others_than_members_do_not_commit_to_a_group_of_kafka() -> None:
    kept = kafka("g", "k")
    with pytest.raises(UnknownMemberIdError):
        kept.commit("g", HERE, 0)
    with pytest.raises(UnknownMemberIdError):
        kept.commit("g", HERE, 0, member_id="m", epoch=1)
    positions = {HERE: Position(7)}

    def commit(member_id: str, number: int) -> Refused | None:
        result = kept.machine.handle_classic_commit(
            "g", positions, WallMs(0), Committer(member_id, generation=number)
        )
        kept.store(result)
        return result.response

    assert commit("k", 2) is Refused.ILLEGAL_GENERATION
    assert kept.machine.positions("g", Kind.COMMITTED) == {}
    assert commit("k", 1) is None
    assert kept.machine.positions("g", Kind.COMMITTED) == positions


def test_an_id_that_was_given_out_holds_no_group() -> None:
    """KIP-394: its client may be gone. As in Kafka it has to join again."""
    kept = kafka("g")
    classic = kept.machine.classic

    def join(member_id: str, new_id: str) -> list[Effect]:
        request = JoinRequest(
            group="g",
            member_id=member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
            new_id=new_id,
            needs_id=True,
        )
        return classic.join(request, 1, MonotonicMs(0))

    assert join("", "k") == [Answer(1, Refusal(Refused.MEMBER_ID_REQUIRED, "k"))]
    assert classic.members("g") == 1
    kept.commit("g", HERE, 0)
    kept.store(kept.machine.handle_delete("g", WallMs(1)))
    assert not kept.machine.names()
    assert (classic.members("g"), classic.is_due(MonotonicMs(10**9))) == (0, False)
    assert join("k", "") == [Answer(1, Refusal(Refused.UNKNOWN_MEMBER, "k"))]
    join("", "l")
    kept.join("g", 2)
    assert kept.machine.summary("g") == Summary(NameKind.CONSUMER, 1)


def test_a_group_of_kafka_with_members_is_neither_deleted_nor_forgotten() -> None:
    kept = kafka("g", "k")
    kept.store(
        kept.machine.handle_classic_commit(
            "g", {HERE: Position(1)}, WallMs(0), Committer("k", generation=1)
        )
    )
    with pytest.raises(GroupNotEmptyError):
        kept.machine.handle_delete("g", WallMs(0))
    kept.expire(10 * RETENTION_MS)
    assert kept.machine.positions("g", Kind.COMMITTED) == {HERE: Position(1)}


def test_an_empty_group_of_kafka_is_forgotten_after_its_time() -> None:
    kept = kafka("g", at=5 * RETENTION_MS)
    kept.commit("g", HERE, 0)
    kept.expire(6 * RETENTION_MS)
    assert kept.machine.names() == ["g"]
    kept.expire(6 * RETENTION_MS + 1)
    kept.expire(6 * RETENTION_MS + 1)
    assert kept.machine.names() == []


def test_an_empty_group_of_kafka_is_deleted_with_its_positions() -> None:
    kept = kafka("g")
    kept.commit("g", HERE, 0)
    kept.store(kept.machine.handle_delete("g", WallMs(0)))
    assert kept.machine.names() == []


def test_topics_that_members_of_kafka_read_are_not_forgotten() -> None:
    kept = kafka("g", "k", says=subscription("orders"))
    kept.forget("g", OTHER_ID)
    with pytest.raises(GroupSubscribedToTopicError):
        kept.forget("g", TOPIC_ID)
    with pytest.raises(GroupNotEmptyError):
        kafka("g", "k", says=b"?").forget("g", OTHER_ID)


class KafkaReader(Kept):
    """A coordinator that forgets a topic a second after members have left it.

    It has a classic group of one member, `k`, with a position in each of two topics.
    """

    def __init__(self, *topics: str) -> None:
        super().__init__(left_topic_retention_ms=1_000)
        self.subscribe(1, subscription(*topics), at=0)
        self.commit_as_member({HERE: Position(1), GONE: Position(1)}, at=0)

    def subscribe(self, number: int, says: bytes, at: int) -> None:
        """Begin a generation in which the member says this."""
        stored = generation("k", number=number, says=says)
        self.store(self.machine.handle_generation("g", stored, WallMs(at)))
        self.generation = number

    def commit_as_member(self, positions: dict[TopicPartition, Position], at: int) -> None:
        committer = Committer("k", generation=self.generation)
        result = self.machine.handle_classic_commit("g", positions, WallMs(at), committer)
        assert result.response is None
        self.store(result)

    def kept_at(self, at: int) -> list[TopicPartition]:
        """Return where the group has positions after a look at this time."""
        self.expire(at, OTHER_ID)
        return sorted(self.machine.positions("g", Kind.COMMITTED))


def test_a_group_of_kafka_forgets_a_topic_that_its_members_have_left_and_no_other_one() -> None:
    kept = KafkaReader("orders", "others")
    assert kept.kept_at(50_000) == [HERE, GONE], "its members read both"
    kept.subscribe(2, subscription("orders"), at=50_000)
    assert kept.kept_at(51_000) == [HERE, GONE], "others may have been left just now"
    assert kept.kept_at(51_001) == [HERE]


def test_a_group_of_kafka_keeps_a_topic_where_it_has_stored_a_position_meanwhile() -> None:
    kept = KafkaReader("orders")
    kept.commit_as_member({GONE: Position(2)}, at=9_000)
    assert kept.kept_at(10_000) == [HERE, GONE]
    assert kept.kept_at(10_001) == [HERE]


def test_a_group_of_kafka_forgets_no_topic_while_it_is_not_known_what_it_reads() -> None:
    kept = KafkaReader("orders", "deleted, and may come back as others")
    assert kept.kept_at(50_000) == [HERE, GONE]
    kept.subscribe(2, b"?", at=0)
    assert kept.kept_at(50_000) == [HERE, GONE]
    kept.subscribe(3, subscription("orders"), at=0)
    joining = JoinRequest(
        group="g",
        member_id="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
        new_id="l",
        needs_id=False,
    )
    kept.machine.classic.join(joining, 1, MonotonicMs(0))
    assert kept.kept_at(50_000) == [HERE, GONE], "it rebalances"
    kept.machine.classic.restart(MonotonicMs(0))
    assert kept.kept_at(50_000) == [HERE]


def test_topics_that_members_of_kafka_read_are_not_forgotten_just_after_a_failover() -> None:
    """Until the first event of a classic group the coordinator has its log alone."""
    kept = Kept()
    stored = generation("k", says=subscription("orders"))
    kept.store(kept.machine.handle_generation("g", stored, WallMs(0)))
    with pytest.raises(GroupSubscribedToTopicError):
        kept.machine.handle_forget_partitions("g", [HERE], TOPICS, WallMs(1))
    kept.machine.handle_forget_partitions("g", [GONE], TOPICS, WallMs(1))
