"""What brokers say to the controller, there and back."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import registration

from millrace.broker.controller.messages import (
    request_from_proto,
    request_to_proto,
)
from millrace.core.ids import BrokerEpoch, BrokerId
from millrace.core.media import Media
from millrace.core.metadata.model import (
    NOWHERE,
    BrokerLife,
    KafkaAddresses,
    Reluctance,
    SideAddresses,
)
from millrace.core.metadata.requests import AcceptedCopy, Heartbeat, RegisterBroker

LIFE = BrokerLife(BrokerId(2), BrokerEpoch(7))


@pytest.mark.parametrize("media", [(), (Media.HDD,), (Media.SSD, Media.HDD)])
def test_a_heartbeat_says_of_which_media_its_broker_has_directories(
    media: tuple[Media, ...],
) -> None:
    message = request_to_proto(Heartbeat(life=LIFE, metadata_epoch=5, media=media))
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.media == media


def test_a_heartbeat_says_where_clients_outside_find_its_broker() -> None:
    request = Heartbeat(life=LIFE, metadata_epoch=5, outside_address="203.0.113.5:9094")
    found = request_from_proto(request_to_proto(request))
    assert isinstance(found, Heartbeat)
    assert found.outside_address == "203.0.113.5:9094"


def test_a_heartbeat_says_where_its_broker_is_reached_by_drpc() -> None:
    addresses = SideAddresses(clients="c:1", outside="o:2", brokers="b:3")
    request = Heartbeat(life=LIFE, metadata_epoch=5, drpc_addresses=addresses)
    message = request_to_proto(request)
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.drpc_addresses == addresses
    message.heartbeat.ClearField("drpc_addresses")  # As a broker of 0.2.0.
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.drpc_addresses == NOWHERE


def test_a_heartbeat_says_where_its_broker_is_reached_by_tls() -> None:
    addresses = SideAddresses(clients="c:1", outside="o:2", brokers="b:3")
    request = Heartbeat(life=LIFE, metadata_epoch=5, tls_addresses=addresses)
    found = request_from_proto(request_to_proto(request))
    assert isinstance(found, Heartbeat)
    assert found.tls_addresses == addresses


def test_a_heartbeat_says_where_clients_of_kafka_reach_its_broker() -> None:
    addresses = KafkaAddresses("c:1", "o:2", "c:3", "o:4")
    request = Heartbeat(life=LIFE, metadata_epoch=5, kafka_addresses=addresses)
    message = request_to_proto(request)
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.kafka_addresses == addresses
    message.heartbeat.ClearField("kafka_addresses")  # As a broker of an earlier release.
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.kafka_addresses == KafkaAddresses()


def test_media_of_a_later_release_and_repeated_ones_are_left_out() -> None:
    message = request_to_proto(Heartbeat(life=LIFE, metadata_epoch=5))
    message.heartbeat.media.extend([99, 2, 1, 2])  # type: ignore[list-item]
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.media == (Media.SSD, Media.HDD)


@pytest.mark.parametrize("reluctance", Reluctance)
def test_a_heartbeat_says_why_its_broker_would_rather_not_lead(reluctance: Reluctance) -> None:
    message = request_to_proto(Heartbeat(life=LIFE, metadata_epoch=5, reluctance=reluctance))
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.reluctance is reluctance


def test_a_reason_of_a_later_release_is_none() -> None:
    message = request_to_proto(Heartbeat(life=LIFE, metadata_epoch=5))
    message.heartbeat.reluctance = 99  # type: ignore[assignment]
    found = request_from_proto(message)
    assert isinstance(found, Heartbeat)
    assert found.reluctance is Reluctance.NONE


@pytest.mark.parametrize("accepted", [None, AcceptedCopy(BrokerEpoch(17), BrokerEpoch(20))])
def test_a_registration_says_which_older_copy_a_person_accepts(
    accepted: AcceptedCopy | None,
) -> None:
    request = replace(registration(1), accepted_copy=accepted)
    found = request_from_proto(request_to_proto(request))
    assert isinstance(found, RegisterBroker)
    assert found.accepted_copy == accepted
