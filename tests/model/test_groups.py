"""A group whose heartbeats and answers are late, lost and repeated, against P61.

Each member keeps to its side: it confirms an assignment when it has stopped to read what that one
revokes, it ignores older answers, and it stops to read before its session ends. Whatever happens,
no partition is read by two members. When messages arrive again, every partition is read.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.coordinator.groups.assignors import SubscribedTopic
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import (
    JOINING,
    NO_PARTITIONS,
    Current,
    Member,
    Partitions,
)
from millrace.core.coordinator.groups.membership import Heartbeat, MembershipMachine
from millrace.core.coordinator.groups.patterns import matching
from millrace.core.coordinator.groups.subscriptions import FoundTopic
from millrace.core.errors import FencedMemberEpochError, UnknownMemberIdError
from millrace.core.ids import TopicId, WallMs

GROUP = "g"
NAMES = ("red", "green", "blue")
NAMES_SORTED = tuple(sorted(NAMES))
IDS = {name: TopicId(name.encode().ljust(16, b".")) for name in NAMES}
NOW = WallMs(1)
members = st.integers(0, 3)
subscriptions = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(
    lambda names: tuple(sorted(names))
)


@dataclass
class Reader:
    """One process: what it knows and reads, and its messages under way."""

    member_id: str
    topics: tuple[str, ...]
    zone: str
    epoch: int = JOINING
    reads: Partitions = NO_PARTITIONS
    has_joined: bool = False
    requests: list[Heartbeat] = field(default_factory=list)
    answers: list[Current] = field(default_factory=list)

    def heartbeat(self) -> Heartbeat:
        said = Member(topics=self.topics, zone=self.zone)
        return Heartbeat(self.member_id, self.epoch, said)

    def take(self, told: Current) -> None:
        self.has_joined = True
        if told.epoch > self.epoch:
            self.epoch, self.reads = told.epoch, told.assigned


class Groups(RuleBasedStateMachine):
    """One group, its members, and the messages between them."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = dict.fromkeys(NAMES, 2)
        self.machine = MembershipMachine(GroupsConfig())
        self.readers: dict[int, Reader] = {}
        self.lives = 0

    # What the machine asks for.

    @property
    def version(self) -> object:
        return object()

    def find(self, name: str) -> FoundTopic | None:
        count = self.partitions[name]
        zones = [frozenset("ab"[number % 2]) for number in range(count)]
        return FoundTopic(IDS[name], SubscribedTopic(count, zones)) if count else None

    def matching(self, pattern: str) -> list[str]:
        return matching(pattern, sorted(IDS))

    def handle(self, reader: Reader, heartbeat: Heartbeat) -> Current | None:
        try:
            result = self.machine.handle_heartbeat(GROUP, heartbeat, self, NOW)
        except UnknownMemberIdError:
            assert reader.member_id not in self.known
            return None
        for record in result.records:
            self.machine.replay(record)
        return result.response

    @property
    def known(self) -> frozenset[str]:
        group = self.machine.groups.get(GROUP)
        return frozenset(() if group is None else group.members)

    # What happens.

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4))
    def topic_changes(self, name: str, count: int) -> None:
        self.partitions[name] = count

    @rule(number=members, topics=subscriptions, zone=st.sampled_from(("", "a", "b")))
    def starts(self, number: int, topics: tuple[str, ...], zone: str) -> None:
        if number not in self.readers:
            self.lives += 1
            self.readers[number] = Reader(f"m{number}.{self.lives}", topics, zone)

    @rule(number=members, topics=subscriptions)
    def subscribes(self, number: int, topics: tuple[str, ...]) -> None:
        if number in self.readers:
            self.readers[number].topics = topics

    @rule(number=members, times=st.integers(1, 3), is_answered=st.booleans())
    def asks_again_and_again(self, number: int, times: int, is_answered: bool) -> None:
        self.starts(number, NAMES_SORTED, "")
        reader = self.readers[number]
        for _ in range(times):
            answer = self.handle(reader, reader.heartbeat())
        if answer is not None and is_answered:
            reader.take(answer)

    @rule(number=members)
    def asks(self, number: int) -> None:
        if number in self.readers:
            reader = self.readers[number]
            reader.requests.append(reader.heartbeat())

    @rule(number=members, which=st.integers(0, 3), is_repeated=st.booleans())
    def request_arrives(self, number: int, which: int, is_repeated: bool) -> None:
        reader = self.readers.get(number)
        if reader is not None and which < len(reader.requests):
            heartbeat = reader.requests[which]
            if not is_repeated:
                del reader.requests[which]
            answer = self.handle(reader, heartbeat)
            if answer is not None:
                reader.answers.append(answer)

    @rule(number=members, which=st.integers(0, 3), is_lost=st.booleans())
    def answer_arrives(self, number: int, which: int, is_lost: bool) -> None:
        reader = self.readers.get(number)
        if reader is not None and which < len(reader.answers):
            answer = reader.answers.pop(which)
            if not is_lost:
                reader.take(answer)

    @rule(number=members)
    def leaves_or_is_gone(self, number: int) -> None:
        reader = self.readers.pop(number, None)
        if reader is not None:
            leaving = self.machine.handle_leave(GROUP, [reader.member_id], self, NOW)
            for record in leaving.records:
                self.machine.replay(record)

    @rule()
    def another_broker_leads(self) -> None:
        """The new leader has what the records say, and nothing else."""
        before = self.machine.groups.get(GROUP)
        if before is not None:
            draft = before.draft()
            self.machine.groups[GROUP] = draft
            assert draft == before

    # What holds.

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        read = [read for reader in self.readers.values() for read in reader.reads]
        assert len(read) == len(set(read))

    @invariant()
    def owners_are_what_members_own(self) -> None:
        group = self.machine.groups.get(GROUP)
        if group is not None:
            assert group.current.keys() == group.members.keys()
            assert group.owners == {
                partition: member_id
                for member_id, current in group.current.items()
                for partition in current.assigned | current.revoking
            }

    @precondition(lambda self: self.readers)
    @rule()
    def all_is_quiet(self) -> None:
        for _ in range(4):
            for reader in self.readers.values():
                reader.requests.clear()
                reader.answers.clear()
                try:
                    answer = self.handle(reader, reader.heartbeat())
                except FencedMemberEpochError as error:
                    raise AssertionError(f"{reader} is fenced") from error
                assert answer is not None
                reader.take(answer)
        read = {read for reader in self.readers.values() for read in reader.reads}
        assert read == {
            (IDS[name], partition)
            for name, count in self.partitions.items()
            if any(name in reader.topics for reader in self.readers.values())
            for partition in range(count)
        }


Groups.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestGroups = Groups.TestCase
