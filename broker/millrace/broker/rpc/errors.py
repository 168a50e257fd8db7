"""The status of calls that fail as a whole.

That is only where no message can say so: the call could not be understood, or the broker cannot
serve it now, as without a controller. All other errors travel inside of messages, see
`millrace.proto.errors`.
"""

from typing import Any, NoReturn

import grpc

from millrace.core.errors import (
    InvalidRequestError,
    MillraceError,
    RetriableError,
    UnsupportedFeatureError,
)


def status_of(error: MillraceError) -> grpc.StatusCode:
    """Return the status of a call that fails as a whole."""
    if isinstance(error, UnsupportedFeatureError):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, InvalidRequestError):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, RetriableError):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INTERNAL


async def abort(
    context: "grpc.aio.ServicerContext[Any, Any]", error: MillraceError, *trailers: Any
) -> NoReturn:
    """End a call as a whole; what this raises, for gRPC, has the error for its cause.

    Args:
        context: of the call.
        error: what it fails for.
        trailers: the trailing metadata, if any.
    """
    try:
        await context.abort(status_of(error), error.message, *trailers)
    except grpc.aio.AbortError as aborted:
        raise aborted from error
