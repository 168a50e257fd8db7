"""Errors as they travel: inside of messages, one for each thing that was refused."""

from typing import Final

from millrace.core.errors import (
    Appended,
    MillraceError,
    RefreshMetadataError,
    error_for_code,
)
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.proto.v1 import common_pb2 as pb

_TO_WIRE: Final = {Appended.NO: pb.APPENDED_NO, Appended.MAYBE: pb.APPENDED_MAYBE}
_FROM_WIRE: Final = {wire: appended for appended, wire in _TO_WIRE.items()}


def error_to_wire(error: MillraceError, *, is_write: bool = False) -> pb.Error:
    """Return the message for an error; `is_write` adds whether anything was appended."""
    return pb.Error(
        code=error.code,  # type: ignore[arg-type]
        message=error.message,
        appended=_TO_WIRE[error.appended] if is_write else pb.APPENDED_UNSPECIFIED,
        retriable=error.retriable,
    )


def error_from_wire(error: pb.Error) -> MillraceError:
    """Return the exception that the other side means."""
    found = error_for_code(error.code)(error.message, appended=_FROM_WIRE.get(error.appended))
    if isinstance(found, RefreshMetadataError) and error.HasField("leader"):
        named = error.leader
        leader = Leader(BrokerId(named.broker_id), LeaderEpoch(named.leader_epoch))
        found.leader = KnownLeader(leader, named.address)
    return found
