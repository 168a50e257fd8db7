"""How a broker reaches others while they change to TLS (G4)."""

from pathlib import Path

import pytest
from tests.fakes.certificate_files import CertificateFiles

from millrace.broker.peer_connection import PeerConnections, Way
from millrace.core.broker_config import LimitsConfig
from millrace.runtime.transport.credentials import ClientCredentials

PLAIN, BOTH, ALONE = ("h:1", "", "d:1"), ("h:1", "h:2", "d:1"), ("h:1", "h:1", "d:1")
"""Addresses of other brokers: of gRPC, of it by TLS, and of DRPC."""


@pytest.mark.parametrize(
    ("other", "from_plain", "from_both", "from_alone"),
    [
        (PLAIN, Way("h:1", False, "d:1"), Way("h:1", False, "d:1"), Way("h:1", True, "d:1")),
        (BOTH, Way("h:1", False, "d:1"), Way("h:2", True), Way("h:2", True)),
        (ALONE, Way("h:1", False, "d:1"), Way("h:1", True, "d:1"), Way("h:1", True, "d:1")),
    ],
)
def test_a_broker_calls_by_tls_who_has_it_and_never_in_plain_text_once_its_own_port_is_closed(
    tmp_path: Path, other: tuple[str, str, str], from_plain: Way, from_both: Way, from_alone: Way
) -> None:
    made = CertificateFiles(tmp_path).make("b", "localhost")
    credentials = ClientCredentials(made, lambda _: None)
    limits = LimitsConfig()
    assert PeerConnections(limits).way(*other) == from_plain
    assert PeerConnections(limits, credentials, has_both=True).way(*other) == from_both
    assert PeerConnections(limits, credentials).way(*other) == from_alone
