"""Errors as they travel: inside of messages, one for each thing that was refused."""

from millrace.core.errors import Appended, MillraceError
from millrace.proto.v1 import common_pb2 as pb

_APPENDED = {Appended.NO: pb.APPENDED_NO, Appended.MAYBE: pb.APPENDED_MAYBE}


def to_proto(error: MillraceError, *, is_write: bool = False) -> pb.Error:
    """Return the message for an error; `is_write` adds whether anything was appended."""
    return pb.Error(
        code=error.code,  # type: ignore[arg-type]
        message=error.message,
        appended=_APPENDED[error.appended] if is_write else pb.APPENDED_UNSPECIFIED,
        retriable=error.retriable,
    )
