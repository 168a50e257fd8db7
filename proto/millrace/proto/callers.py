"""Callers on the wire: a client id with every call, the whole caller in forwarded requests."""

from collections.abc import Iterable
from typing import Final

from millrace.core.callers import Caller, client_id_problem
from millrace.core.errors import MalformedRequestError
from millrace.proto.v1 import controller_pb2 as pb

_CLIENT_ID: Final = "millrace-client-id"
"""Key of the metadata of a call."""

Metadata = tuple[tuple[str, str], ...]


def client_id_to_metadata(client_id: str) -> Metadata:
    """Return the metadata of every call of a client."""
    return ((_CLIENT_ID, client_id),)


def client_id_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the client id in a call's metadata; empty if there is none.

    Raises:
        MalformedRequestError: it breaks the rules of client ids, or there are several.
    """
    said = [value for key, value in metadata if key == _CLIENT_ID]
    if not said:
        return ""
    if len(said) > 1:
        raise MalformedRequestError(
            f"the call has {len(said)} client ids ({_CLIENT_ID}): send at most one"
        )
    client_id = said[0] if isinstance(said[0], str) else said[0].decode("ascii", "replace")
    if problem := client_id_problem(client_id):
        raise MalformedRequestError(problem)
    return client_id


def caller_to_wire(caller: Caller) -> pb.Caller:
    """Return the message of a caller."""
    return pb.Caller(
        principal=caller.principal,
        client_id=caller.client_id,
        address=caller.address,
        listener=caller.listener,
        software=caller.software,
    )


def caller_from_wire(message: pb.Caller) -> Caller:
    """Return the caller of a message: trust it only from a broker."""
    return Caller(
        principal=message.principal,
        client_id=message.client_id,
        address=message.address,
        listener=message.listener,
        software=message.software,
    )
