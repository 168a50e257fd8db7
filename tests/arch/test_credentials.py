"""One place decides what the ends of a connection show each other, so that TLS is one change."""

import re

from tests.arch.repository import ROOT, modules

SEAM = ROOT / "runtime" / "millrace" / "runtime" / "host.py"
CREDENTIALS = re.compile(
    r"\b\w*(?:insecure|secure)_(?:channel|port)\b|\b\w*_(?:channel|server)_credentials\b"
)


def test_only_the_host_gives_connections_their_credentials() -> None:
    assert CREDENTIALS.search(SEAM.read_text())
    others = [path for path in modules().values() if path != SEAM]
    assert [str(path) for path in others if CREDENTIALS.search(path.read_text())] == []
