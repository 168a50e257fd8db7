"""Members of KIP-848 that take their time, in a group of Millrace's own.

Each keeps to its side: it takes an answer, gives up what is not in it, says so, and begins to read
what is. Messages are late, and none is lost. No partition is read by two members; and when all have
done what they were told, every partition is read.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fakes.topics_view import Topics

from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import (
    JOINING,
    NO_PARTITIONS,
    Current,
    Member,
    Partitions,
)
from millrace.core.coordinator.groups.membership import Heartbeat, MembershipMachine
from millrace.core.coordinator.groups.owned_reports import confirmed, told
from millrace.core.ids import TopicId, WallMs

NAMES = tuple("abcde")
TOPICS = Topics({name: TopicId(name.encode() * 16) for name in NAMES})
NOW = WallMs(1)
processes = st.integers(0, 2)


@dataclass
class Process:
    """What one knows.

    Attributes:
        epoch: that it was told last.
        owned: what it reads.
        target: what it was told to read.
        says: whether its next heartbeat says what it owns.
        answer: that is on its way to it; None: none is.
        request: likewise from it.
    """

    epoch: int = JOINING
    owned: Partitions = NO_PARTITIONS
    target: Partitions = NO_PARTITIONS
    says: bool = True
    answer: tuple[int, Partitions] | None = None
    request: tuple[int, Partitions | None] | None = None


class Members(RuleBasedStateMachine):
    """One group."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = MembershipMachine(GroupsConfig())
        self.known: dict[int, Process] = {}

    @rule(number=processes)
    def talk(self, number: int) -> None:
        self.send(number)
        self.handle(number)
        self.take(number)

    @rule(number=processes)
    def talk_and_read(self, number: int) -> None:
        self.talk(number)
        self.give_up(number)
        self.begin_to_read(number)

    @rule(number=processes)
    def send(self, number: int) -> None:
        process = self.known.setdefault(number, Process())
        if process.request is None and process.answer is None:
            process.request = process.epoch, process.owned if process.says else None
            process.says = False

    @rule(number=processes)
    def handle(self, number: int) -> None:
        process = self.known.get(number)
        if process is None or process.request is None:
            return
        (epoch, owned), process.request = process.request, None
        member_id = f"m{number}"
        group = self.machine.groups.get("g")
        current = Current() if group is None else group.current.get(member_id, Current())
        said = Member(topics=NAMES) if epoch == JOINING else None
        heartbeat = Heartbeat(member_id, confirmed(current, epoch, owned), said)
        result = self.machine.handle_heartbeat("g", heartbeat, TOPICS, NOW)
        for record in result.records:
            self.machine.replay(record)
        process.answer = told(result.response)

    @rule(number=processes)
    def take(self, number: int) -> None:
        process = self.known.get(number)
        if process is not None and process.answer is not None:
            (epoch, target), process.answer = process.answer, None
            process.says = process.says or target != process.target or epoch != process.epoch
            process.epoch, process.target = epoch, target

    @rule(number=processes)
    def give_up(self, number: int) -> None:
        process = self.known.get(number)
        if process is not None and not process.owned <= process.target:
            process.owned &= process.target
            process.says = True

    @rule(number=processes)
    def begin_to_read(self, number: int) -> None:
        process = self.known.get(number)
        if process is not None and process.owned < process.target:
            process.owned, process.says = process.target, True

    @rule(number=processes)
    def leave(self, number: int) -> None:
        process = self.known.get(number)
        if process is None or process.epoch == JOINING or process.request is not None:
            return
        del self.known[number]
        for record in self.machine.handle_leave("g", [f"m{number}"], TOPICS, NOW).records:
            self.machine.replay(record)

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        read = [partition for process in self.known.values() for partition in process.owned]
        assert len(read) == len({*read})

    def teardown(self) -> None:
        for _ in range(12):
            for number in list(self.known):
                for do in (self.handle, self.take, self.give_up, self.begin_to_read, self.send):
                    do(number)
        read = {partition for process in self.known.values() for partition in process.owned}
        assert not self.known or len(read) == len(NAMES)


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
