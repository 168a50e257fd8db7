"""When authorities and certificates are made, and what they name."""

from dataclasses import replace

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.operator.model.certificates import broker_hosts, broker_uri, host_of
from millrace.operator.plan.certificates import (
    AUTHORITIES_MAX,
    NOTHING_ASKED,
    USUAL,
    Asked,
    Certificates,
    Held,
    Span,
    Wanted,
    certificates,
    known_hosts,
)
from millrace.operator.plan.outside import Outside, hosts_outside, told_outside
from millrace.operator.reconcile.renewals import (
    AUTHORITY,
    CERTIFICATES,
    asked_renewals,
    check_renewals,
)
from millrace.operator.reconcile.resources import cluster_of

DAY = 86_400.0
NAMES = Wanted(frozenset({"a"}), "spiffe://d/ns/n/cluster/c/broker/b-0")
BROKERS = {"b-0": NAMES, "b-1": NAMES}


def authority(begins_day: float) -> Span:
    return Span(begins_day * DAY, begins_day * DAY + USUAL.authority)


def held(begins_day: float, signer: int | None = 1) -> Held:
    begins = begins_day * DAY
    return Held(Span(begins, begins + USUAL.certificate), NAMES.hosts, NAMES.uri, signer)


def plan(
    authorities: dict[int, Span],
    certificates_of: dict[str, Held],
    day: float,
    asked: Asked = NOTHING_ASKED,
) -> Certificates:
    return certificates(authorities, certificates_of, BROKERS, day * DAY, USUAL, asked=asked)


def test_a_new_cluster_gets_an_authority_that_signs_at_once() -> None:
    assert plan({}, {}, 0) == Certificates(1, (1,), 1, ("b-0", "b-1"))


def test_nothing_is_done_while_all_is_well() -> None:
    has = {"b-0": held(0), "b-1": held(0)}
    assert plan({1: authority(0)}, has, 19.9) == Certificates(None, (1,), 1, ())


def test_a_certificate_is_renewed_in_time() -> None:
    has = {"b-0": held(0), "b-1": held(5)}
    assert plan({1: authority(0)}, has, 20).issue == ("b-0",)


def test_a_certificate_that_lacks_a_name_or_a_broker_without_one_gets_one() -> None:
    other = replace(held(0), hosts=frozenset({"a", "old"}))
    assert plan({1: authority(0)}, {"b-0": other}, 1).issue == ("b-0", "b-1")
    other = replace(held(0), uri="spiffe://d/ns/n/cluster/c/broker/b-1")
    assert plan({1: authority(0)}, {"b-0": other, "b-1": held(0)}, 1).issue == ("b-0",)


def test_a_certificate_of_an_unknown_authority_does_not_count() -> None:
    has = {"b-0": held(0, None), "b-1": held(0)}
    assert plan({1: authority(0)}, has, 1).issue == ("b-0",)


def test_a_new_authority_is_trusted_long_before_it_signs() -> None:
    has = {"b-0": held(239), "b-1": held(239)}
    assert plan({1: authority(0)}, has, 240) == Certificates(2, (1, 2), 1, ())
    both = {1: authority(0), 2: authority(240)}
    has = {"b-0": held(299), "b-1": held(299)}
    assert plan(both, has, 299.9) == Certificates(None, (1, 2), 1, ())
    assert plan(both, has, 300) == Certificates(None, (1, 2), 2, ("b-0", "b-1"))


def test_the_authority_before_is_trusted_until_it_ends() -> None:
    both = {1: authority(0), 2: authority(240)}
    has = {"b-0": held(350, 2), "b-1": held(350, 2)}
    assert plan(both, has, 364.9).trusted == (1, 2)
    assert plan(both, has, 365).trusted == (2,)


def test_no_certificate_in_use_is_of_an_authority_that_is_not_trusted() -> None:
    """Three years, a look a day: what a broker shows was trusted for long, and is now."""
    authorities: dict[int, Span] = {}
    has: dict[str, Held] = {}
    for day in range(3 * 365):
        step = plan(authorities, has, day)
        assert all(each.authority in step.trusted for each in has.values())
        assert all(each.span.ends > day * DAY for each in has.values())
        if step.new_authority is not None:
            authorities[step.new_authority] = authority(day)
        authorities = {number: authorities[number] for number in step.trusted}
        if step.issue and step.signing > 1:
            assert day * DAY >= authorities[step.signing].begins + USUAL.spread
        has |= {broker: held(day, step.signing) for broker in step.issue}
        assert len(authorities) <= 2
    assert max(authorities) == 5


def test_a_cluster_whose_authorities_have_all_ended_begins_again() -> None:
    has = {"b-0": held(0), "b-1": held(0)}
    assert plan({1: authority(0)}, has, 400) == Certificates(2, (2,), 2, ("b-0", "b-1"))


MINUTE = 60 / DAY
"""In days."""


def test_certificates_are_renewed_by_hand_once() -> None:
    asked = Asked(certificates=10 * DAY)
    has = {"b-0": held(9), "b-1": held(10)}
    assert plan({1: authority(0)}, has, 10, asked).issue == ("b-0",)
    has = {"b-0": held(10), "b-1": held(10)}
    assert plan({1: authority(0)}, has, 11, asked) == Certificates(None, (1,), 1, ())


def test_what_is_asked_for_later_waits() -> None:
    asked = Asked(certificates=10 * DAY, authority=10 * DAY)
    has = {"b-0": held(1), "b-1": held(1)}
    assert plan({1: authority(0)}, has, 9.9, asked) == Certificates(None, (1,), 1, ())


def test_an_authority_is_replaced_by_hand_in_steps_that_pods_can_follow() -> None:
    """A new one is trusted, then it signs, and then the one before is trusted no more."""
    asked, old = Asked(authority=10 * DAY), {"b-0": held(1), "b-1": held(1)}
    assert plan({1: authority(0)}, old, 10, asked) == Certificates(2, (1, 2), 1, ())
    both = {1: authority(0), 2: authority(10)}
    assert plan(both, old, 10 + 2.9 * MINUTE, asked) == Certificates(None, (1, 2), 1, ())
    signs = plan(both, old, 10 + 3 * MINUTE, asked)
    assert signs == Certificates(None, (1, 2), 2, ("b-0", "b-1"))
    new = {"b-0": held(10 + 3 * MINUTE, 2), "b-1": held(10 + 4 * MINUTE, 2)}
    assert plan(both, new, 10 + 6.9 * MINUTE, asked) == Certificates(None, (1, 2), 2, ())
    assert plan(both, new, 10 + 7 * MINUTE, asked) == Certificates(None, (2,), 2, ())
    assert plan({2: authority(10)}, new, 11, asked) == Certificates(None, (2,), 2, ())


def test_an_authority_goes_by_hand_only_when_no_broker_shows_anything_of_it() -> None:
    asked, both = Asked(authority=10 * DAY), {1: authority(0), 2: authority(10)}
    for late in (None, held(1, 1), held(1, None), held(19.9999, 2)):
        has = {"b-0": held(11, 2), **({} if late is None else {"b-1": late})}
        assert plan(both, has, 20, asked).trusted == (1, 2), late


def test_an_authority_that_was_made_by_the_calendar_keeps_its_time_after_one_by_hand() -> None:
    asked = Asked(authority=10 * DAY)
    both = {2: authority(10), 3: authority(250)}
    has = {"b-0": held(240, 2), "b-1": held(240, 2)}
    assert plan(both, has, 251, asked) == Certificates(None, (2, 3), 2, ())


def test_authorities_are_replaced_by_hand_one_after_another() -> None:
    """Every 30 s, with a look each 10 s: none signs before all pods trust it, and one stays."""

    def made(now: float, signer: int) -> dict[str, Held]:
        one = Held(Span(now, now + USUAL.certificate), NAMES.hosts, NAMES.uri, signer)
        return dict.fromkeys(BROKERS, one)

    authorities, has = {1: authority(0)}, made(0, 1)
    signers = set()
    for now in range(0, 2000, 10):
        asked = Asked(authority=min(now // 30 * 30, 600))
        step = certificates(authorities, has, BROKERS, now, USUAL, asked=asked)
        if step.new_authority is not None:
            authorities[step.new_authority] = Span(now, now + USUAL.authority)
        authorities = {number: authorities[number] for number in step.trusted}
        if step.issue:
            signers.add(step.signing)
            assert now >= authorities[step.signing].begins + USUAL.by_hand
            has = made(now, step.signing)
        assert all(each.authority in authorities for each in has.values())
    assert signers == set(range(2, 22))
    assert list(authorities) == [21]


def test_authorities_by_hand_have_a_bound() -> None:
    many = {number: authority(number / 1000) for number in range(1, AUTHORITIES_MAX + 1)}
    has = {"b-0": held(1), "b-1": held(1)}
    assert plan(many, has, 1, Asked(authority=DAY)).new_authority is None
    del many[1]
    assert plan(many, has, 1, Asked(authority=DAY)).new_authority == AUTHORITIES_MAX + 1


def test_people_ask_by_annotations() -> None:
    assert asked_renewals({"other": "x"}) == NOTHING_ASKED
    asked = asked_renewals({CERTIFICATES: "1970-01-02T00:00:00Z", AUTHORITY: "1970-01-03T00:00Z"})
    assert asked == Asked(certificates=DAY, authority=2 * DAY)
    for wrong in ("true", "2026-11-30", "2026-11-30T12:00:00"):
        with pytest.raises(InvalidConfigError, match=f"{AUTHORITY}: '{wrong}' is no time"):
            check_renewals({AUTHORITY: wrong})
        asked = asked_renewals({AUTHORITY: wrong, CERTIFICATES: "1970-01-02T00:00:00Z"})
        assert asked == Asked(certificates=DAY)
    check_renewals({CERTIFICATES: "1970-01-02T00:00:00Z", "other": "x"})


def test_a_certificate_names_all_ways_to_a_broker() -> None:
    cluster = cluster_of(
        {
            "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
            "spec": {
                "pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}],
                "tls": {"trustDomain": "example.org"},
            },
        }
    )
    hosts = broker_hosts(cluster, "c-b-0", {"203.0.113.7"})
    assert {
        "c-b-0.c-brokers.logs.svc",
        "c-bootstrap.logs.svc",
        "localhost",
        "127.0.0.1",
        "203.0.113.7",
    } <= hosts
    assert not any(host.startswith("c-b-1") for host in hosts)
    assert broker_uri(cluster, "c-b-0") == "spiffe://example.org/ns/logs/cluster/c/broker/c-b-0"


def test_addresses_are_written_as_certificates_have_them() -> None:
    assert host_of("[2001:db8:0:0::1]:7092") == "2001:db8::1"
    assert host_of("broker-0.example.org:31001") == "broker-0.example.org"


FOUND = Outside({"b-0": "192.0.2.1:1", "b-0.drpc": "192.0.2.1:2", "b-1": "192.0.2.2:1"}, "b.org:9")


def test_a_certificate_has_an_address_before_clients_are_told_it() -> None:
    """G9."""
    brokers = ["b-0", "b-1"]
    assert hosts_outside(FOUND, brokers, {}) == {
        "b-0": {"192.0.2.1", "b.org"},
        "b-1": {"192.0.2.2", "b.org"},
    }
    told = told_outside(FOUND, brokers, {"b-0": frozenset({"192.0.2.1", "b.org"})}, {})
    assert told.addresses == {"b-0": "192.0.2.1:1", "b-0.drpc": "192.0.2.1:2"}
    assert told.waits == [
        "b-1: its certificate has yet to get the name of 192.0.2.2:1",
        "certificates have yet to get the names of b.org:9",
    ]


def test_a_certificate_keeps_its_names_while_a_pod_is_replaced() -> None:
    """G9: its broker comes back to the same address before another certificate would reach it."""
    brokers = ["b-0", "b-1"]
    has = {"b-0": frozenset({"192.0.2.1", "b.org"}), "b-1": frozenset({"192.0.2.2", "b.org"})}
    for away in (
        Outside({"b-0": "192.0.2.1:1"}, ""),
        # It keeps its address, but is none of those to which clients connect first.
        Outside({"b-0": "192.0.2.1:1", "b-1": "192.0.2.2:1"}, "", away=frozenset({"b-1"})),
    ):
        assert hosts_outside(away, brokers, has) == has
    moved = Outside({"b-0": "192.0.2.1:1", "b-1": "192.0.2.3:1"}, "b.org:9")
    assert hosts_outside(moved, brokers, has) == {**has, "b-1": {"192.0.2.3", "b.org"}}


def test_an_address_that_is_told_stays_when_the_certificate_is_renewed() -> None:
    told = told_outside(FOUND, ["b-0", "b-1"], {}, {"b-1": "192.0.2.2:1", "b-0": "192.0.2.9:1"})
    assert told.addresses == {"b-1": "192.0.2.2:1"}


def test_a_name_counts_once_the_certificate_has_reached_the_pod() -> None:
    has = {"b-0": held(1)}
    now = DAY + USUAL.names_spread
    assert known_hosts(has, ["b-0", "b-1"], now - 1, USUAL) == {
        "b-0": frozenset(),
        "b-1": frozenset(),
    }
    assert known_hosts(has, ["b-0"], now, USUAL) == {"b-0": {"a"}}
