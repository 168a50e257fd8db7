"""What cert-manager is asked for, and whom clients trust while its issuer changes."""

from typing import Any

import pytest

from millrace.operator.model.issued import certificate, issued_hosts
from millrace.operator.model.objects import Document
from millrace.operator.plan.issued import ready_since, trusted
from millrace.operator.reconcile.resources import cluster_of

POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
OLD, NEW = b"old", b"new"
WRITTEN = "2027-01-15T08:00:00Z"


def asked(*outside: str, namespace: str = "logs", **tls: Any) -> Document:
    cluster = cluster_of(
        {
            "metadata": {"namespace": namespace, "name": "c", "uid": "u1", "generation": 1},
            "spec": {"pools": [POOL], "tls": {"issuerRef": {"name": "company"}, **tls}},
        }
    )
    made = certificate(cluster, outside)
    spec: Document = made["spec"]
    names = [*spec["dnsNames"], *spec.get("ipAddresses", ())]
    assert {*names} == issued_hosts(cluster, outside)
    return spec


def test_names_and_addresses_outside_are_asked_for_as_what_they_are() -> None:
    spec = asked("b.example.org", "192.0.2.1", "2001:db8::1")
    assert spec["ipAddresses"] == ["192.0.2.1", "2001:db8::1"]
    assert "b.example.org" in spec["dnsNames"]
    assert "ipAddresses" not in asked()


def test_pods_are_named_at_once_so_that_brokers_come_and_go() -> None:
    assert {"*.c-brokers.logs.svc", "*.c-brokers.logs"} <= {*asked()["dnsNames"]}


def test_times_are_those_of_the_cluster_or_usual_ones() -> None:
    assert (asked()["duration"], asked().get("renewBefore")) == ("720h", None)
    spec = asked(duration="72h", renewBefore="30h")
    assert (spec["duration"], spec["renewBefore"]) == ("72h", "30h")


def test_a_name_that_is_too_long_for_a_common_name_is_not_one() -> None:
    assert asked()["commonName"] == "c-bootstrap.logs.svc"
    assert "commonName" not in asked(namespace="n" * 63)


def test_clients_trust_both_authorities_for_as_long_as_the_certificate_takes_to_pods() -> None:
    assert trusted([NEW], [OLD], since=0, now=1000, spread=180) == ([NEW, OLD], 1000)
    assert trusted([NEW], [NEW, OLD], since=1000, now=1179, spread=180) == ([NEW, OLD], 1000)
    assert trusted([NEW], [NEW, OLD], since=1000, now=1180, spread=180) == ([NEW], 1000)


def test_what_clients_trust_stays_while_the_secret_is_away() -> None:
    assert trusted([], [OLD], since=0, now=1000, spread=180) == ([OLD], 0)


@pytest.mark.parametrize(
    ("ready", "since"),
    [
        ({"status": "True", "observedGeneration": 3}, WRITTEN),
        ({"status": "True"}, WRITTEN),
        ({"status": "True", "observedGeneration": 2}, None),
        ({"status": "False", "observedGeneration": 3}, None),
    ],
)
def test_a_certificate_counts_once_it_is_issued_as_it_is_now(
    ready: dict[str, Any], since: str | None
) -> None:
    condition = {"type": "Ready", "lastTransitionTime": WRITTEN, **ready}
    made = {"metadata": {"generation": 3}, "status": {"conditions": [condition]}}
    assert ready_since(made) == since
