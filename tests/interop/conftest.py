"""A broker, and the client in Go."""

from pathlib import Path

import pytest
from tests.integration.conftest import shared_broker, start_broker, topic_name
from tests.interop.client_program import PROGRAMS

__all__ = ["go_client", "shared_broker", "start_broker", "topic_name"]


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The program."""
    if not PROGRAMS.are_built():
        pytest.skip("the client in Go is not built yet: make go-client")
    return PROGRAMS.folder() / "client"
