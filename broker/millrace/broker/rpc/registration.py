"""What a broker says of itself when it registers."""

from millrace.broker.replica.log_directories import LogDirectories
from millrace.broker.rpc.listeners import Listeners
from millrace.core.broker_config import NodeConfig
from millrace.core.metadata.requests import RegisterBroker, parse_accepted_copy
from millrace.runtime import host


def registration_of(
    node: NodeConfig, directories: LogDirectories, listeners: Listeners
) -> RegisterBroker:
    """Return the registration of a broker whose ports are bound.

    Args:
        node: its settings.
        directories: its log directories, open.
        listeners: its ports.
    """
    address, replica_address = listeners.clients.address, listeners.replica.address
    accepted = node.accept_older_copy
    return RegisterBroker(
        name=node.name,
        rack=node.rack,
        host=address.host,
        port=address.port,
        replica_host=replica_address.host,
        replica_port=replica_address.port,
        incarnation_id=host.current.random_bytes(16).hex(),
        directory_ids=[opened.identity.directory_id for opened in directories.opened],
        broker_id=directories.broker_id,
        previous_broker_epoch=directories.closed_by,
        directory_epoch=directories.used_by,
        accepted_copy=parse_accepted_copy(accepted) if accepted else None,
    )
