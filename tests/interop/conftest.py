"""A broker, and the programs in Go."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import shared_broker, start_broker, topic_name
from tests.interop.client_program import PROGRAMS

__all__ = ["go_client", "go_server", "shared_broker", "start_broker", "topic_name"]


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The client."""
    return _program("client")


@pytest.fixture
def go_server() -> Iterator[str]:
    """The address of a server by Go's DRPC library."""
    with subprocess.Popen(
        [_program("server")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


def _program(name: str) -> Path:
    if not PROGRAMS.are_built():
        pytest.skip("the programs in Go are not built yet: make go-client")
    return PROGRAMS.folder() / name
