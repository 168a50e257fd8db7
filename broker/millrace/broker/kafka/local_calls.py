"""Calls of Millrace's own services in the process, for a client of Kafka.

What a call demands of its caller, its quota, its bounds and its lines in the audit log are those of
the same call over gRPC: they belong to the method (`rpc/calls`).
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.rpc.calls import LocalCall, ServiceMethods


class LocalCalls:
    """The methods of all services of a listener that have one request and one response.

    Args:
        services: each with its methods; no name is used twice.
    """

    def __init__(self, services: Iterable[ServiceMethods]) -> None:
        self._methods: dict[str, LocalCall] = {}
        for service in services:
            assert not self._methods.keys() & service.local.keys(), service.name
            self._methods.update(service.local)

    async def call(self, method: str, request: Message, caller: GuardedCaller) -> Any:
        """Return the response of a method.

        Args:
            method: its name, without the service.
            request: of the method's class.
            caller: for whom.

        Raises:
            MillraceError: the call is refused as a whole; that is recorded.
        """
        return await self._methods[method](request, caller)
