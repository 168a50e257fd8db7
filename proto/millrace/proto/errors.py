"""Errors on the wire: inside messages, one for each thing that was refused.

A call that is refused as a whole has no message. Its gRPC status does not tell what a caller may
do, so the trailing metadata holds the error.
"""

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from millrace.core.errors import (
    Appended,
    MillraceError,
    ReassignmentReason,
    ReassignmentRefusedError,
    RefreshMetadataError,
    error_for_code,
)
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.proto.v1 import common_pb2 as pb

_TO_WIRE: Final = {Appended.NO: pb.APPENDED_NO, Appended.MAYBE: pb.APPENDED_MAYBE}
_FROM_WIRE: Final = {wire: appended for appended, wire in _TO_WIRE.items()}
_REASSIGNMENT_REASONS: Final = frozenset(reason.value for reason in ReassignmentReason)
_TEXT_MAX: Final = 2000
"""Most characters of an error's text: text repeated from a request must not make a large answer."""
_TRAILER: Final = "millrace-error-bin"


def error_to_wire(error: MillraceError, *, is_write: bool = False) -> pb.Error:
    """Return the message for an error; `is_write` adds whether anything was appended."""
    text = error.message
    message = pb.Error(
        code=error.code,  # type: ignore[arg-type]
        message=text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}...",
        appended=_TO_WIRE[error.appended] if is_write else pb.APPENDED_UNSPECIFIED,
        retriable=error.retriable,
    )
    if isinstance(error, ReassignmentRefusedError) and error.reason is not None:
        message.reassignment = error.reason.value  # type: ignore[assignment]
    return message


def error_from_wire(error: pb.Error) -> MillraceError:
    """Return the exception for an error of the other side."""
    found = error_for_code(error.code)(error.message, appended=_FROM_WIRE.get(error.appended))
    if isinstance(found, RefreshMetadataError) and error.HasField("leader"):
        named = error.leader
        leader = Leader(BrokerId(named.broker_id), LeaderEpoch(named.leader_epoch))
        found.leader = KnownLeader(leader, named.address)
    if isinstance(found, ReassignmentRefusedError):
        known = error.reassignment in _REASSIGNMENT_REASONS
        found.reason = ReassignmentReason(error.reassignment) if known else None
    return found


def error_to_bytes(error: MillraceError) -> bytes:
    """Return what a call that fails for an error says of it, without its text."""
    named = error_to_wire(error, is_write=True)
    named.ClearField("message")
    return named.SerializeToString()


def error_from_bytes(data: bytes, message: str) -> MillraceError | None:
    """Return the exception that a call failed for; None: the other side did not name it.

    Args:
        data: what the other side said of it.
        message: its text.
    """
    try:
        named = pb.Error.FromString(data)
    except DecodeError:
        return None
    named.message = message
    return error_from_wire(named) if named.code else None


def error_to_trailers(error: MillraceError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata of a call that fails for it; the status has the text."""
    return ((_TRAILER, error_to_bytes(error)),)


def error_from_trailers(
    trailers: Iterable[tuple[str, str | bytes]], message: str
) -> MillraceError | None:
    """Return the exception that a call failed for; None: the other side did not name it.

    Args:
        trailers: the trailing metadata.
        message: the text of the status.
    """
    for key, value in trailers:
        if key == _TRAILER and isinstance(value, bytes):
            return error_from_bytes(value, message)
    return None
