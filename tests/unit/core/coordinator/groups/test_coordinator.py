"""What a coordinator keeps of groups and positions together, and for how long."""

import pytest
from tests.fakes.topics_view import Topics

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import GroupCoordinator, NameKind
from millrace.core.coordinator.groups.group import JOINING, Member
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.coordinator.positions.position import Kind, Position, PositionsConfig
from millrace.core.errors import GroupSubscribedToTopicError
from millrace.core.ids import Offset, TopicId, TopicPartition, WallMs

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
