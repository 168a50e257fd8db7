"""The certificates of the Kubernetes that tests start."""

import shutil
import ssl
from pathlib import Path

import pytest
from e2e.cluster.certificates import Certificates


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes them")
def test_a_strict_client_accepts_a_certificate_of_the_cluster(tmp_path: Path) -> None:
    """As clients in Python 3.13 are."""
    certificates = Certificates(tmp_path / "certificates")
    certificates.make_authority()
    certificates.sign("apiserver", "kube-apiserver", also=("IP:127.0.0.1",))
    client = ssl.create_default_context(cafile=str(certificates.authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.path("apiserver.crt"), certificates.path("apiserver.key"))
    upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(downward, upward, server_hostname="127.0.0.1"),
        server.wrap_bio(upward, downward, server_side=True),
    ]
    for _ in range(5):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert ends == []
