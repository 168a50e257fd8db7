import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidConfigError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.core.guard.access import (
    CLUSTER,
    OPERATIONS,
    Demand,
    Operation,
    Resource,
    ResourceKind,
    named,
    refusal,
)
from millrace.core.guard.identity import NOBODY, Identity, principal_problem
from millrace.core.guard.rules import RULES_MAX, Rule, Rules, parse_rules

ALICE = Identity("alice")
ANALYST = Identity("bob", frozenset({"analysts"}))

RULES = """
[[rules]]
who = ["alice", "team-*"]
may = ["produce", "describe"]
topics = ["shop/orders", "shop/returns-*"]

[[rules]]
who = ["group:analysts"]
may = ["consume", "describe"]
topics = ["shop/*"]
groups = ["shop/report"]

[[rules]]
who = ["root"]
may = ["describe", "administer"]
cluster = true

[[rules]]
who = ["anonymous"]
may = ["describe"]
topics = ["public"]

[[rules]]
who = ["*"]
may = ["consume"]
topics = ["all-*/news"]
"""


def topic(name: str, operation: str = "describe") -> Demand:
    return Demand(Operation(operation), named(ResourceKind.TOPICS, name))


def rules(text: str = RULES) -> Rules:
    return parse_rules(text)


@pytest.mark.parametrize(
    ("identity", "demand", "is_allowed"),
    [
        (ALICE, topic("shop/orders", "produce"), True),
        (ALICE, topic("shop/orders", "consume"), False),
        (ALICE, topic("shop/returns-2026"), True),
        (ALICE, topic("shop/return"), False),
        (ALICE, topic("orders"), False),
        (Identity("team-blue"), topic("shop/orders"), True),
        (Identity("teams"), topic("shop/orders"), False),
        (ANALYST, topic("shop/anything", "consume"), True),
        (ANALYST, topic("shops/anything", "consume"), False),
        (Identity("bob"), topic("shop/anything", "consume"), False),
        (ANALYST, Demand(Operation.CONSUME, named(ResourceKind.GROUPS, "shop/report")), True),
        (ANALYST, Demand(Operation.CONSUME, named(ResourceKind.GROUPS, "report")), False),
        (Identity("root"), Demand(Operation.ADMINISTER, CLUSTER), True),
        (Identity("root"), topic("shop/orders"), False),
        (ALICE, Demand(Operation.DESCRIBE, CLUSTER), False),
        (NOBODY, topic("public"), True),
        (NOBODY, topic("all-things/news", "consume"), False),
        (ALICE, topic("public"), False),
        (ALICE, topic("all-things/news", "consume"), True),
        (Identity("group:analysts"), topic("shop/anything", "consume"), False),
    ],
)
def test_rules_allow_what_they_name_and_nothing_else(
    identity: Identity, demand: Demand, is_allowed: bool
) -> None:
    assert rules().allow(identity, demand) is is_allowed


def test_no_rules_allow_nothing() -> None:
    nothing = rules("")
    assert not nothing.allow(ALICE, topic("orders"))
    assert not nothing.knows(ALICE)
    assert rules().knows(ALICE)
    assert rules().knows(NOBODY)


def test_no_operation_includes_another_one() -> None:
    for kind, operations in OPERATIONS.items():
        on = "cluster = true" if kind is ResourceKind.CLUSTER else f'{kind} = ["a/b"]'
        resource = CLUSTER if kind is ResourceKind.CLUSTER else Resource(kind, "a", "b")
        for operation in operations:
            one = rules(f'[[rules]]\nwho = ["alice"]\nmay = ["{operation}"]\n{on}')
            allowed = [op for op in Operation if one.allow(ALICE, Demand(op, resource))]
            assert allowed == [operation]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rules]\n", "no TOML"),
        ("rules = 1", "line 1: write each rule below a line of its own, [[rules]]"),
        ("\n[rule]\nwho = []", "line 2: 'rule' is no part of rules"),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]', "line 1: the rule names nothing"),
        ('[[rules]]\nmay = ["describe"]\ntopics = ["a"]', "line 1: who: write a list"),
        ('[[rules]]\nwho = "a"\nmay = ["describe"]\ntopics = ["a"]', "line 2: who: write a list"),
        (
            '[[rules]]\nwho = ["a"]\nmay = ["read"]\ntopics = ["a"]',
            "line 3: 'read' is no operation",
        ),
        (
            '[[rules]]\nwho = ["a"]\nmay = ["produced"]\ntopics = ["a"]',
            "line 3: 'produced' is no operation: did you mean 'produce'?",
        ),
        ('[[rules]]\nwho = ["a"]\nmay = ["create"]\ngroups = ["a"]', "line 3: nothing can be done"),
        (
            '[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["*"]',
            "line 4: '*' could mean two",
        ),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["a*b"]', "line 4: 'a*b': write a"),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["A/b"]', "line 4: 'A/b': before"),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["/b"]', "line 4: '/b': before"),
        ('[[rules]]\nwho = ["a*b"]\nmay = ["describe"]\ntopics = ["a"]', "line 2: 'a*b': a name"),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopic = ["a"]', "line 4: 'topic': did you"),
        ('[[rules]]\nwho = ["a"]\nmay = ["describe"]\ncluster = "yes"', "line 4: write cluster"),
        (
            '[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["a"]\n'
            '[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = [7]',
            "line 8: topics: write a list of texts",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_rules(text)
    assert problem in refused.value.message


def test_there_are_at_most_so_many_rules() -> None:
    rule = '[[rules]]\nwho = ["a"]\nmay = ["describe"]\ntopics = ["a"]\n'
    assert len(parse_rules(rule * 3)) == 3
    with pytest.raises(InvalidConfigError, match="at most"):
        parse_rules(rule * (RULES_MAX + 1))


@given(st.text(alphabet=string.printable, max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(InvalidConfigError):  # And no other error.
        parse_rules(text)


NAMES = st.text(alphabet="ab-", min_size=1, max_size=4).filter(
    lambda text: not text.startswith("-")
)


@given(
    st.lists(st.tuples(NAMES, st.booleans(), NAMES, st.booleans()), min_size=1, max_size=5),
    NAMES,
    NAMES,
)
def test_names_and_prefixes_mean_what_they_say(
    patterns: list[tuple[str, bool, str, bool]], namespace: str, name: str
) -> None:
    texts = [f"{ns}{'*' * any_ns}/{nm}{'*' * any_nm}" for ns, any_ns, nm, any_nm in patterns]
    listed = ", ".join(f'"{text}"' for text in texts)
    one = rules(f'[[rules]]\nwho = ["alice"]\nmay = ["consume"]\ntopics = [{listed}]')
    expected = any(
        (namespace.startswith(ns) if any_ns else namespace == ns)
        and (name.startswith(nm) if any_nm else name == nm)
        for ns, any_ns, nm, any_nm in patterns
    )
    demand = Demand(Operation.CONSUME, Resource(ResourceKind.TOPICS, namespace, name))
    assert one.allow(ALICE, demand) is expected


NAMES = st.text("ab", max_size=3)
WHO = st.one_of(
    st.sampled_from(["anonymous", "*", "group:*"]),
    st.builds(
        "{}{}{}".format, st.sampled_from(["", "group:"]), NAMES.filter(bool), st.sampled_from("* ")
    ).map(str.strip),
)


def is_meant(who: str, identity: Identity) -> bool:
    """Return what `who` of a rule says, without an index."""
    if who == "anonymous" or not identity.is_known:
        return who == "anonymous" and not identity.is_known
    names = identity.groups if who.startswith("group:") else {identity.principal}
    wanted = who.removeprefix("group:")
    return any(
        name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted for name in names
    )


@given(
    st.lists(st.lists(WHO, min_size=1, max_size=3), max_size=6),
    st.one_of(st.just(NOBODY), st.builds(Identity, NAMES.filter(bool), st.frozensets(NAMES))),
)
def test_the_rules_for_somebody_are_those_that_name_them(
    who: list[list[str]], identity: Identity
) -> None:
    all_rules = [Rule(tuple(each), frozenset(), {}) for each in who]
    assert Rules(all_rules).rules_for(identity) == [
        rule for rule in all_rules if any(is_meant(each, identity) for each in rule.who)
    ]


class Counting(Rules):
    """Rules that tell for whom they were looked through."""

    def __init__(self, identities_max: int) -> None:
        super().__init__((), identities_max)
        self.found_for: list[str] = []

    def rules_for(self, identity: Identity) -> list[Rule]:
        self.found_for.append(identity.principal)
        return super().rules_for(identity)


def test_the_rights_of_those_who_asked_last_are_remembered_and_those_alone() -> None:
    asked = Counting(identities_max=2)
    for principal in ("a", "b", "a", "c", "a", "c", "b"):
        asked.knows(Identity(principal))
    assert asked.found_for == ["a", "b", "c", "b"]


def test_a_refusal_says_who_may_not_do_what_and_how_to_get_it() -> None:
    error = refusal("alice", topic("shop/orders", "produce"))
    assert isinstance(error, TopicAuthorizationFailedError)
    assert error.message == (
        "'alice' may not produce topic 'shop/orders': ask who runs the cluster for a rule that "
        "allows `produce` on topics"
    )
    assert not error.retriable
    group = Demand(Operation.CONSUME, named(ResourceKind.GROUPS, "g"))
    assert isinstance(refusal("alice", group), GroupAuthorizationFailedError)
    transaction = Demand(Operation.TRANSACT, named(ResourceKind.TRANSACTIONS, "t" * 1000))
    error = refusal("alice", transaction)
    assert isinstance(error, TransactionalIdAuthorizationFailedError)
    assert len(error.message) < 400
    cluster = refusal("alice", Demand(Operation.ADMINISTER, CLUSTER))
    assert isinstance(cluster, ClusterAuthorizationFailedError)


@pytest.mark.parametrize("name", ["", "a b ", "*", "a*", "anonymous", "group:a", "a\n", "x" * 300])
def test_not_every_text_is_a_principal(name: str) -> None:
    assert principal_problem(name)


@pytest.mark.parametrize(
    "name", ["alice", "system:serviceaccount:shop:orders", "spiffe://a/ns/b", "Größer, O=x"]
)
def test_names_of_accounts_and_certificates_are_principals(name: str) -> None:
    assert not principal_problem(name)
