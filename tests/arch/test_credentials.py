"""One place decides what the ends of a connection show each other, so that TLS is one change."""

import re

import pytest
from tests.arch.repository import ROOT, modules

RUNTIME = ROOT / "runtime" / "millrace" / "runtime"


@pytest.mark.parametrize(
    ("seam", "words"),
    [
        ("host.py", r"\b\w*(?:insecure|secure)_(?:channel|port)\b"),
        ("transport/credentials.py", r"\b\w*_(?:channel|server)_credentials\b"),
    ],
)
def test_one_place_gives_connections_their_credentials(seam: str, words: str) -> None:
    assert re.search(words, (RUNTIME / seam).read_text())
    others = [path for path in modules().values() if path != RUNTIME / seam]
    assert [str(path) for path in others if re.search(words, path.read_text())] == []
