"""A Lease of Kubernetes, as brokers of several releases write it one after the other."""

import json
from typing import Any

from millrace.core.controller.lease import LeaseRecord
from millrace.runtime.kubernetes.api_server import Answer
from millrace.runtime.kubernetes.lease import KubernetesLease
from millrace.runtime.kubernetes.resources import LEASE, Resource

_FIRST = LeaseRecord(
    holder="b-0", address="b-0:7094", duration_ms=2000, version=1, tls_address="b-0:7194"
)


class Stored:
    """The object at an API server."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.lease = KubernetesLease(
            self.request, Resource(LEASE, "ns", "c-controller"), {}, OSError
        )

    def request(self, method: str, path: str, body: bytes | None) -> Answer:
        del path
        if body is not None:
            self.document = json.loads(body)
        if not self.document:
            return Answer(404, {})
        return Answer(201 if method == "POST" else 200, self.document)

    def take_by_an_earlier_release(self, version: int) -> None:
        """Write what it knows, and leave the rest, as it does."""
        self.document["metadata"]["annotations"]["millrace.dev/version"] = str(version)


def test_who_holds_the_lease_says_where_it_speaks_tls() -> None:
    stored = Stored()
    assert stored.lease.compare_and_swap(_FIRST)
    assert stored.lease.read() == _FIRST


def test_a_holder_of_an_earlier_release_at_the_same_host_is_not_believed_to_speak_tls() -> None:
    """It leaves the address of the one before; nobody would reach it there (G4)."""
    stored = Stored()
    assert stored.lease.compare_and_swap(_FIRST)
    stored.take_by_an_earlier_release(2)
    found = stored.lease.read()
    assert found is not None
    assert (found.address, found.tls_address, found.version) == ("b-0:7094", "", 2)
