"""A broker started as a user starts it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that the tests of a module share.

    Tests name topics as a user would, so two modules with one broker could choose the same name.
    """
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.address
    broker.abandon()


@pytest.fixture
def millrace(address: str) -> CommandLine:
    return CommandLine(address)


@pytest.fixture
def topic(request: pytest.FixtureRequest, millrace: CommandLine) -> str:
    """A topic of one partition for this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    millrace.ok("topic", "create", name, "--partitions", "1")
    return name


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may stop and kill."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    yield broker
    broker.abandon()
