"""Each call of the protocol has a declaration of what it demands, and the page says the same."""

from docs.generate import SECURITY
from docs.security_page import declared, security

from millrace.core.guard.access import OPERATIONS
from millrace.proto.v1 import (
    cluster_pb2,
    fetch_pb2,
    groups_pb2,
    positions_pb2,
    produce_pb2,
    shared_transactions_pb2,
    transactions_pb2,
)

MODULES = (
    cluster_pb2,
    fetch_pb2,
    groups_pb2,
    positions_pb2,
    produce_pb2,
    shared_transactions_pb2,
    transactions_pb2,
)
"""Those with the services of clients; `controller` and `replica` are for brokers."""


def test_each_call_of_clients_declares_what_it_demands() -> None:
    calls = {
        f"{service.name}.{method.name}"
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert declared().keys() == calls


def test_a_demand_is_an_operation_that_its_kind_has() -> None:
    for name, demands in declared().items():
        assert demands.is_for_known, name
        for clause in demands.clauses:
            assert clause.operation in OPERATIONS[clause.kind], name


def test_the_page_about_security_is_what_the_declarations_say() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    assert text == security(text), "Run: make docs"
