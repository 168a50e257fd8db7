"""Whom a broker takes for another one, and by which name it goes itself (rule G2)."""

import pytest

from millrace.broker.peer_connection import OwnName, PeerConnections
from millrace.core.broker_config import LimitsConfig
from millrace.core.broker_names import BrokerName
from millrace.core.errors import InvalidConfigError
from millrace.runtime.certificates import Names, issue, new_authority
from millrace.runtime.transport.drpc.connector import PeerRefusedError

OWN = BrokerName("millrace", "team", "orders", "broker-0")
AUTHORITY = new_authority("test", days=1)


def certificate(uri: str) -> bytes:
    return issue(AUTHORITY, Names(common="b", hosts=["localhost"], uri=uri), days=1).certificate


@pytest.mark.parametrize(
    "principal",
    [
        OWN.uri,
        OWN._replace(broker="broker-2").uri,
        OWN._replace(broker="broker-1", cluster="another").uri,
        OWN._replace(broker="broker-1", namespace="another").uri,
        OWN._replace(broker="broker-1", trust_domain="another").uri,
        "broker-1",
        "",
    ],
)
def test_nobody_else_is_taken_for_the_broker_that_is_called(principal: str) -> None:
    check = PeerConnections(LimitsConfig(), own=OWN).check_of("broker-1")
    check(OWN._replace(broker="broker-1").uri)
    with pytest.raises(PeerRefusedError, match="not of broker 'broker-1' of this cluster"):
        check(principal)


def test_brokers_without_certificates_believe_everybody() -> None:
    PeerConnections(LimitsConfig()).check_of("broker-1")("")


@pytest.mark.parametrize(
    "other", [OWN._replace(broker="broker-1").uri, OWN._replace(cluster="another").uri, ""]
)
def test_a_broker_keeps_the_name_of_its_first_certificate(other: str) -> None:
    name = OwnName("broker-0")
    name.check(certificate(OWN.uri))
    with pytest.raises(InvalidConfigError, match=OWN.uri):
        name.check(certificate(other))
    assert name.value == OWN
    name.check(certificate(OWN.uri))


def test_the_first_certificate_has_to_name_the_broker_of_the_settings() -> None:
    with pytest.raises(InvalidConfigError, match=r"node\.name 'broker-1'"):
        OwnName("broker-1").check(certificate(OWN.uri))
