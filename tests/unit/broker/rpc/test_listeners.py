"""What callers of each listener are told to connect to."""

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.fakes.certificate_files import CertificateFiles
from tests.fakes.quotas import no_quotas
from tests.fakes.until import until

from millrace.broker.address import Address
from millrace.broker.rpc.audit import AuditLog
from millrace.broker.rpc.listeners import Addresses, Listeners
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import BrokerConfig, NodeConfig
from millrace.core.broker_names import BrokerName
from millrace.core.listeners_config import (
    ClientsDrpcListenerConfig,
    ClientsListenerConfig,
    ListenerProtocol,
    ListenersConfig,
    OutsideDrpcListenerConfig,
    OutsideListenerConfig,
    ReplicasDrpcListenerConfig,
    ReplicasListenerConfig,
)
from millrace.core.metadata.model import Listener, SideAddresses
from millrace.runtime.turns import Turns


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


async def test_connections_of_brokers_count_at_the_port_of_tls_as_at_that_of_plain_text(
    tmp_path: Path,
) -> None:
    files = CertificateFiles(tmp_path)
    uri = BrokerName("millrace", "team", "orders", "b-0").uri
    made = files.make("b-0", "localhost", "127.0.0.1", uri=uri)
    replicas = ReplicasListenerConfig(
        port=0,
        tls_port=0,
        tls_certificate_file=made.certificate,
        tls_key_file=made.key,
        tls_client_ca_file=made.ca,
    )
    config = BrokerConfig(
        log_dirs=(str(tmp_path),),
        node=NodeConfig(name="b-0"),
        listeners=ListenersConfig(
            clients=ClientsListenerConfig(port=0),
            replicas=replicas,
            clients_drpc=ClientsDrpcListenerConfig(port=-1),
            replicas_drpc=ReplicasDrpcListenerConfig(port=-1),
        ),
    )
    metrics = BrokerMetrics()
    count = metrics.registry.get_sample_value
    tasks = set[asyncio.Task[None]]()
    listeners = Listeners(
        config,
        config.limits,
        metrics=metrics,
        refusals=Refusals(metrics, AuditLog(lines_max=100)),
        turns=Turns(),
        quotas=no_quotas(),
        guard=None,
        begin=lambda duty: tasks.add(asyncio.create_task(duty)),
    )
    replica = listeners.replica
    await replica.serve()
    try:
        with ExitStack() as stack:
            for address in (str(replica.address), replica.tls_address):
                host, _, port = address.rpartition(":")
                there = socket.create_connection((host, int(port)), timeout=10)
                stack.enter_context(there)
            await until(lambda: count("millrace_connections", {"listener": "brokers"}) == 2)
    finally:
        await replica.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
