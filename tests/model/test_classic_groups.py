"""Classic groups whose members come, go, fall silent and repeat themselves, on brokers that fail.

Whatever happens: each request is answered once; who is told an assignment is told what the log has,
of a generation in which no other member is told something else; and when all falls silent, nothing
is left that waits.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fakes.classic_groups import RANGE, ROUND, Coordinated

from millrace.core.coordinator.groups.classic_events import Joined, Leaving, Refusal, Synced
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.coordinator.groups.config import GroupsConfig

processes = st.integers(0, 3)
protocols = st.sampled_from([(RANGE,), (RANGE, ROUND), (ROUND, RANGE), (Protocol("range", b"2"),)])
SESSION_MS, REBALANCE_MS = 6000, 4000


class Brokers(RuleBasedStateMachine):
    """One group: four processes, two of them with an instance id."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Coordinated(
            GroupsConfig(classic_rebalance_delay_ms=1000, members_max=4), holds=True
        )
        self.known: dict[int, tuple[str, int]] = {}  # Member id and generation.
        self.joins: dict[int, int] = {}  # The process that sent each.
        self.syncs: dict[int, tuple[str, int]] = {}
        self.told: dict[tuple[int, str], bytes] = {}

    @rule(process=processes, protocols=protocols, needs_id=st.booleans(), forgets=st.booleans())
    def join(
        self, process: int, protocols: tuple[Protocol, ...], needs_id: bool, forgets: bool
    ) -> None:
        member_id, _ = ("", 0) if forgets else self.known.get(process, ("", 0))
        token = self.broker.join(
            member_id,
            instance_id=instance(process),
            protocols=protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            needs_id=needs_id,
        )
        self.joins[token] = process
        self.hear()

    @rule(process=processes, number=st.integers(0, 1))
    def sync(self, process: int, number: int) -> None:
        member_id, generation = self.known.get(process, ("", 0))
        gives = {known: f"{known} of {generation}".encode() for known, _ in self.known.values()}
        token = self.broker.sync(
            member_id, generation - number, gives, instance_id=instance(process)
        )
        self.syncs[token] = member_id, generation - number
        self.hear()

    @rule(process=processes)
    def heartbeat(self, process: int) -> None:
        member_id, generation = self.known.get(process, ("", 0))
        self.broker.heartbeat(member_id, generation, instance_id=instance(process))

    @rule(process=processes)
    def leave(self, process: int) -> None:
        member_id, _ = self.known.get(process, ("?", 0))
        self.broker.leave(Leaving(member_id, instance(process)))
        self.hear()

    @rule(milliseconds=st.sampled_from([250, 1000, 3000]))
    def wait(self, milliseconds: int) -> None:
        self.broker.wait(milliseconds)
        self.hear()

    @rule(fails=st.booleans())
    def let_through(self, fails: bool) -> None:
        self.broker.fails = fails
        self.broker.let_through()
        self.broker.fails = False
        self.hear()

    @rule()
    def fail_over(self) -> None:
        self.broker.fail_over()
        self.hear()

    def hear(self) -> None:
        """Let processes take what they were told."""
        for token, process in list(self.joins.items()):
            reply = self.broker.replies.get(token)
            if reply is None:
                continue
            del self.joins[token]
            if isinstance(reply, Joined):
                self.known[process] = reply.member_id, reply.generation
            elif isinstance(reply, Refusal) and reply.member_id:
                self.known[process] = reply.member_id, 0
        for token, (member_id, generation) in list(self.syncs.items()):
            reply = self.broker.replies.get(token)
            if reply is None:
                continue
            del self.syncs[token]
            if isinstance(reply, Synced):
                stored = self.broker.groups.stored["g"]
                assert stored.number == generation
                assert stored.members[member_id].assignment == reply.assignment
                before = self.told.setdefault((generation, member_id), reply.assignment)
                assert before == reply.assignment

    @invariant()
    def what_waits_is_known(self) -> None:
        group = self.broker.groups.group("g")
        members = [] if group is None else list(group.members.values())
        waiting = {t for member in members for t in (member.join, member.sync) if t is not None}
        answered = self.broker.replies.keys()
        assert waiting.isdisjoint(answered)
        assert waiting | answered == set(range(1, self.broker.asked + 1)), "none is lost"
        assert self.broker.groups.members("g") <= 2 * 4

    def teardown(self) -> None:
        self.broker.holds = False
        self.broker.let_through()
        self.broker.wait(400_000, step=1000)  # A new member may be silent for 300 s.
        assert self.broker.groups.members("g") == 0
        assert len(self.broker.replies) == self.broker.asked
        stored = self.broker.groups.stored.get("g")
        assert stored is None or not stored.members
        tokens = [self.broker.join(new_id=f"n{n}") for n in range(2)]
        self.broker.wait(3000)
        assert self.broker.assign(*tokens) == (stored.number if stored else 0) + 1


def instance(process: int) -> str:
    return f"i{process}" if process < 2 else ""


TestBrokers = Brokers.TestCase
TestBrokers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
