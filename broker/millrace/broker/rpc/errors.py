"""Errors as they travel: inside of messages, one for each thing that was refused.

A call as a whole fails only where no message can say so: it could not be understood, or the broker
cannot serve it now.
"""

from typing import Final

import grpc

from millrace.core.errors import Appended, InvalidRequestError, MillraceError, RetriableError
from millrace.proto.v1 import common_pb2 as pb

_APPENDED: Final = {Appended.NO: pb.APPENDED_NO, Appended.MAYBE: pb.APPENDED_MAYBE}


def to_proto(error: MillraceError, *, is_write: bool = False) -> pb.Error:
    """Return the message for an error; `is_write` adds whether anything was appended."""
    return pb.Error(
        code=error.code,  # type: ignore[arg-type]
        message=error.message,
        appended=_APPENDED[error.appended] if is_write else pb.APPENDED_UNSPECIFIED,
        retriable=error.retriable,
    )


def status_of(error: MillraceError) -> grpc.StatusCode:
    """Return the status of a call that fails as a whole."""
    if isinstance(error, InvalidRequestError):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, RetriableError):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INTERNAL
