"""What callers of each listener are told to connect to."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from millrace.broker.address import Address
from millrace.broker.rpc.listeners import Addresses
from millrace.core.listeners_config import (
    ListenerProtocol,
    ListenersConfig,
    OutsideDrpcListenerConfig,
    OutsideListenerConfig,
)
from millrace.core.metadata.model import Listener, SideAddresses


def test_each_listener_has_an_address_of_its_own_or_that_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "drpc"
    file.write_text("203.0.113.5:9096")
    config = ListenersConfig(
        outside=OutsideListenerConfig(port=0),
        outside_drpc=OutsideDrpcListenerConfig(port=0, address_file=str(file)),
    )
    bound = [
        (entry, Address("own", number)) for number, entry in enumerate(config.entries, start=1)
    ]
    followed: list[Coroutine[Any, Any, None]] = []
    addresses = Addresses(bound, "", followed.append)
    assert addresses.of(ListenerProtocol.GRPC, Listener.OUTSIDE) == "own:2"
    assert addresses.drpc() == SideAddresses("own:4", "203.0.113.5:9096", "own:6")
    (following,) = followed
    following.close()


def test_a_listener_that_there_is_not_has_no_address() -> None:
    assert Addresses([], "", asyncio.ensure_future).drpc() == SideAddresses("", "", "")
