"""When authorities and certificates are made, and what they name."""

from dataclasses import replace

from millrace.operator.model.certificates import broker_hosts, broker_uri, host_of
from millrace.operator.plan.certificates import (
    USUAL,
    Certificates,
    Held,
    Span,
    Wanted,
    certificates,
    known_hosts,
)
from millrace.operator.plan.outside import Outside, hosts_outside, told_outside
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
    authorities: dict[int, Span], certificates_of: dict[str, Held], day: float
) -> Certificates:
    return certificates(authorities, certificates_of, BROKERS, day * DAY, USUAL)


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
    assert hosts_outside(FOUND, brokers) == {
        "b-0": {"192.0.2.1", "b.org"},
        "b-1": {"192.0.2.2", "b.org"},
    }
    told = told_outside(FOUND, brokers, {"b-0": frozenset({"192.0.2.1", "b.org"})}, {})
    assert told.addresses == {"b-0": "192.0.2.1:1", "b-0.drpc": "192.0.2.1:2"}
    assert told.waits == [
        "b-1: its certificate has yet to get the name of 192.0.2.2:1",
        "certificates have yet to get the names of b.org:9",
    ]


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
