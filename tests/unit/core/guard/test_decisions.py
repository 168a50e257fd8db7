from hypothesis import given
from hypothesis import strategies as st

from millrace.core.guard.access import Demand, Operation, ResourceKind, named
from millrace.core.guard.decisions import ALLOWED_MS, AWAY_MS, REFUSED_MS, Decision, Decisions
from millrace.core.guard.identity import Identity
from millrace.core.ids import MonotonicMs

ALICE = Identity("alice")


def demand(name: str = "orders") -> Demand:
    return Demand(Operation.PRODUCE, named(ResourceKind.TOPICS, name))


def at(time: int) -> MonotonicMs:
    return MonotonicMs(time)


def test_a_decision_counts_for_ten_seconds() -> None:
    decisions = Decisions()
    assert decisions.find(ALICE, demand(), at(0)) is None
    kept = decisions.keep(ALICE, demand(), at(0), is_allowed=True)
    assert kept == Decision(True, at(ALLOWED_MS))
    assert decisions.find(ALICE, demand(), at(ALLOWED_MS - 1)) == kept
    assert decisions.find(ALICE, demand(), at(ALLOWED_MS)) is None
    decisions.keep(ALICE, demand(), at(ALLOWED_MS), is_allowed=False)
    found = decisions.find(ALICE, demand(), at(ALLOWED_MS + 1))
    assert found == Decision(False, at(ALLOWED_MS + REFUSED_MS))


def test_a_decision_is_for_one_identity_with_its_groups() -> None:
    decisions = Decisions()
    decisions.keep(ALICE, demand(), at(0), is_allowed=True)
    assert decisions.find(Identity("alice", frozenset({"x"})), demand(), at(0)) is None
    renewed = Identity("alice", expires_at=None)
    assert decisions.find(renewed, demand(), at(0)) is not None


def test_without_the_authority_only_what_was_allowed_goes_on_and_for_a_time() -> None:
    decisions = Decisions()
    decisions.keep(ALICE, demand("a"), at(0), is_allowed=True)
    decisions.keep(ALICE, demand("b"), at(0), is_allowed=False)
    later = at(ALLOWED_MS + 5)
    assert decisions.without_authority(ALICE, demand("a"), later) == Decision(
        True, at(later + ALLOWED_MS)
    )
    assert not decisions.without_authority(ALICE, demand("b"), later).is_allowed
    assert not decisions.without_authority(ALICE, demand("c"), later).is_allowed
    almost = at(AWAY_MS - 1)
    assert decisions.without_authority(ALICE, demand("a"), almost) == Decision(True, at(AWAY_MS))
    assert not decisions.without_authority(ALICE, demand("a"), at(AWAY_MS)).is_allowed


def test_many_refusals_make_nobody_ask_again_for_what_is_allowed() -> None:
    decisions = Decisions(decisions_max=10)
    decisions.keep(ALICE, demand(), at(0), is_allowed=True)
    for number in range(1000):
        decisions.keep(ALICE, demand(f"t{number}"), at(1), is_allowed=False)
    assert decisions.find(ALICE, demand(), at(2)) is not None
    assert decisions.find(ALICE, demand("t999"), at(2)) is not None
    assert decisions.find(ALICE, demand("t989"), at(2)) is None
    assert len(decisions) == 11


def test_everything_is_forgotten_when_the_authority_changes_its_mind() -> None:
    decisions = Decisions()
    decisions.keep(ALICE, demand(), at(0), is_allowed=True)
    decisions.forget()
    assert decisions.find(ALICE, demand(), at(0)) is None
    assert not decisions.without_authority(ALICE, demand(), at(0)).is_allowed


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(0, 4000)), max_size=60)
)
def test_no_decision_counts_for_longer_than_it_may(steps: list[tuple[str, bool, int]]) -> None:
    decisions = Decisions(decisions_max=3)
    last: dict[str, tuple[bool, int]] = {}
    now = 0
    for name, is_allowed, passed in steps:
        now += passed
        for other, (was_allowed, when) in last.items():
            found = decisions.find(ALICE, demand(other), at(now))
            if found is not None:
                assert found.is_allowed is was_allowed
                assert found.until == when + 10_000
                assert now < found.until
        decisions.keep(ALICE, demand(name), at(now), is_allowed=is_allowed)
        last[name] = is_allowed, now
        assert len(decisions) <= 6
