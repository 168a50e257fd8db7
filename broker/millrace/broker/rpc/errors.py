"""The status of calls that fail as a whole.

That is only for calls without a message that could carry the error: the call could not be
understood, or the broker cannot serve it now, for example without a controller. All other errors
travel inside messages, see `millrace.proto.errors`.
"""

from typing import Any, Final, NoReturn

import grpc

from millrace.core.errors import (
    AccessDeniedError,
    AuthenticationFailedError,
    InvalidRequestError,
    MillraceError,
    RetriableError,
    UnsupportedFeatureError,
)
from millrace.proto.errors import error_to_trailers
from millrace.runtime.transport.calls import Status

_OF_GRPC: Final = {code.value[0]: code for code in grpc.StatusCode}


def status_of(error: MillraceError) -> Status:
    """Return the status of a call that fails as a whole."""
    if isinstance(error, AuthenticationFailedError):
        return Status.UNAUTHENTICATED
    if isinstance(error, AccessDeniedError):
        return Status.PERMISSION_DENIED
    if isinstance(error, UnsupportedFeatureError):
        return Status.FAILED_PRECONDITION
    if isinstance(error, InvalidRequestError):
        return Status.INVALID_ARGUMENT
    if isinstance(error, RetriableError):
        return Status.UNAVAILABLE
    return Status.INTERNAL


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: MillraceError) -> NoReturn:
    """End a call as a whole, and name the error in the trailing metadata."""
    await context.abort(_OF_GRPC[status_of(error)], error.message, error_to_trailers(error))


def without_call(aborted: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Return the error of an aborted call without its references: its frames and its cause.

    gRPC's state of a call refers to the error, and the frames refer to the call and its request.
    This cycle would keep each refused request in memory until the garbage collector looks at its
    oldest generation, which is rare.
    """
    aborted.__context__ = aborted.__cause__ = None
    return aborted.with_traceback(None)
