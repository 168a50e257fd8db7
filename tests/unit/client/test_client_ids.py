"""A client id that no broker would take is refused before there is a connection."""

import pytest

from millrace.client import Admin
from millrace.client._cluster.cluster import Cluster
from millrace.core.errors import InvalidConfigError


@pytest.mark.parametrize("client_id", ["", "two words", "x" * 256, "line\nbreak"])
def test_a_malformed_client_id_is_refused_at_once(client_id: str) -> None:
    with pytest.raises(InvalidConfigError, match="client_id="):
        Cluster("localhost:1", client_id=client_id)
    with pytest.raises(InvalidConfigError, match="client_id="):
        Admin("localhost:1", client_id=client_id)
