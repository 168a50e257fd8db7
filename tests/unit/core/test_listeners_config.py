"""Listeners that speak TLS beside plain text, while clients and brokers change to it (G4)."""

from dataclasses import replace

import pytest

from millrace.core.listeners_config import (
    ClientsKafkaListenerConfig,
    ClientsListenerConfig,
    KafkaListenerConfig,
    ListenerEntry,
    ListenerProtocol,
    ListenersConfig,
    OutsideKafkaListenerConfig,
    OutsideListenerConfig,
    ReplicasListenerConfig,
)
from millrace.core.metadata.model import Listener

FILES = {"tls_certificate_file": "b.crt", "tls_key_file": "b.key"}


def clients(**settings: object) -> dict[tuple[ListenerProtocol, Listener], ListenerEntry]:
    """Return the listeners for clients of a broker with these settings of `[listeners.clients]`."""
    config = ListenersConfig(clients=ClientsListenerConfig(**settings))  # type: ignore[arg-type]
    found = [entry for entry in config.entries if entry.side is not Listener.BROKERS]
    return {(entry.protocol, entry.side): entry for entry in found}


def test_a_listener_with_a_certificate_speaks_tls_and_its_twin_does_too() -> None:
    found = clients(**FILES)
    assert found.keys() == {
        (ListenerProtocol.GRPC, Listener.CLIENTS_TLS),
        (ListenerProtocol.DRPC, Listener.CLIENTS_TLS),
    }
    assert all(entry.config.tls_certificate_file for entry in found.values())


def test_beside_plain_text_there_is_a_listener_with_tls_by_grpc() -> None:
    found = clients(**FILES, port=1, advertised_port=2, tls_port=3)
    assert found.keys() == {
        (ListenerProtocol.GRPC, Listener.CLIENTS),
        (ListenerProtocol.GRPC, Listener.CLIENTS_TLS),
        (ListenerProtocol.DRPC, Listener.CLIENTS),
    }
    plain = found[ListenerProtocol.GRPC, Listener.CLIENTS].config
    assert (plain.port, plain.advertised_port, plain.tls_certificate_file) == (1, 2, "")
    by_tls = found[ListenerProtocol.GRPC, Listener.CLIENTS_TLS].config
    assert (by_tls.port, by_tls.advertised_port, by_tls.tls_certificate_file) == (3, 0, "b.crt")
    twin = found[ListenerProtocol.DRPC, Listener.CLIENTS].config
    assert not twin.tls_certificate_file


def test_a_listener_for_clients_of_kafka_takes_host_and_tls_of_the_one_beside_it() -> None:
    config = ListenersConfig(
        clients=ClientsListenerConfig(host="h", **FILES),  # type: ignore[arg-type]
        clients_kafka=ClientsKafkaListenerConfig(port=9092, namespace="pay"),
    )
    (entry,) = [one for one in config.entries if one.protocol is ListenerProtocol.KAFKA]
    assert (entry.name, entry.side) == ("clients_kafka", Listener.CLIENTS_TLS)
    assert isinstance(entry.config, KafkaListenerConfig)
    assert (entry.config.host, entry.config.port, entry.config.namespace) == ("h", 9092, "pay")
    assert entry.config.tls_certificate_file == FILES["tls_certificate_file"]


def test_clients_of_kafka_have_a_port_with_tls_beside_plain_text_too() -> None:
    """G4: they have no gRPC to go by meanwhile."""
    gives = {**FILES, "tls_port": 2}
    config = ListenersConfig(
        outside=OutsideListenerConfig(port=1, **gives),  # type: ignore[arg-type]
        outside_kafka=OutsideKafkaListenerConfig(
            port=3, tls_port=4, address_file="plain", tls_address_file="tls", namespace="pay"
        ),
    )
    assert list(config.validate()) == []
    found = [one for one in config.entries if one.protocol is ListenerProtocol.KAFKA]
    assert [
        (one.side, one.config.port, one.config.address_file, bool(one.config.tls_certificate_file))
        for one in found
    ] == [(Listener.OUTSIDE, 3, "plain", False), (Listener.OUTSIDE_TLS, 4, "tls", True)]
    assert {getattr(one.config, "namespace", "") for one in found} == {"pay"}
    assert [one.label for one in found] == ["outside_kafka", "outside_kafka_tls"]
    without = replace(config, outside_kafka=OutsideKafkaListenerConfig(port=3))
    (alone,) = [one for one in without.entries if one.protocol is ListenerProtocol.KAFKA]
    assert (alone.side, alone.config.tls_certificate_file) == (Listener.OUTSIDE, "")


@pytest.mark.parametrize(
    ("beside", "port", "problem"),
    [
        ({}, 1, "clients_kafka.tls_port: it needs clients.tls_port, and a port"),
        ({**FILES, "tls_port": 5}, -1, "clients_kafka.tls_port: it needs clients.tls_port"),
        ({**FILES, "tls_port": 5}, 2, "clients_kafka.tls_port: it must differ from port"),
    ],
)
def test_a_port_with_tls_for_clients_of_kafka_stands_beside_those_in_plain_text(
    beside: dict[str, object], port: int, problem: str
) -> None:
    config = ListenersConfig(
        clients=ClientsListenerConfig(**beside),  # type: ignore[arg-type]
        clients_kafka=ClientsKafkaListenerConfig(port=port, tls_port=2),
    )
    assert any(said.startswith(problem) for said in config.validate())


def test_a_listener_for_clients_of_kafka_needs_one_beside_it_and_the_name_of_a_namespace() -> None:
    alone = ListenersConfig(outside_kafka=OutsideKafkaListenerConfig(port=1))
    assert list(alone.validate()) == [
        "outside_kafka.port: outside.port must be set, too: clients begin there"
    ]
    wrong = ListenersConfig(clients_kafka=ClientsKafkaListenerConfig(port=1, namespace="No Name"))
    (problem,) = wrong.validate()
    assert problem.startswith("clients_kafka.namespace: 'No Name'")


def test_clients_outside_read_the_address_with_tls_from_a_file_of_its_own() -> None:
    outside = OutsideListenerConfig(
        port=1,
        tls_port=2,
        address_file="plain",
        tls_address_file="tls",
        tls_certificate_file="b.crt",
        tls_key_file="b.key",
    )
    entries = ListenersConfig(outside=outside).entries
    found = {entry.side: entry.config.address_file for entry in entries if entry.side.is_outside}
    assert found == {Listener.OUTSIDE: "plain", Listener.OUTSIDE_TLS: "tls"}


def test_brokers_have_one_listener_with_both_ports() -> None:
    replicas = ReplicasListenerConfig(
        tls_port=5, tls_certificate_file="b.crt", tls_key_file="b.key"
    )
    entries = ListenersConfig(replicas=replicas).entries
    (found,) = [
        entry
        for entry in entries
        if entry.side is Listener.BROKERS and entry.protocol is ListenerProtocol.GRPC
    ]
    assert found.config.has_both


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tls_port": 3}, "clients.tls_port: it needs tls_certificate_file and tls_key_file"),
        ({**FILES, "port": 3, "tls_port": 3}, "clients.tls_port: it must differ from port"),
    ],
)
def test_what_does_not_go_together_is_said(settings: dict[str, object], problem: str) -> None:
    config = ListenersConfig(clients=ClientsListenerConfig(**settings))  # type: ignore[arg-type]
    assert any(said.startswith(problem) for said in config.validate())
