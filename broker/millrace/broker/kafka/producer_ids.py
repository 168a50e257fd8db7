"""InitProducerId of producers without transactions: an id that no other producer has."""

from collections.abc import Mapping
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse

from millrace.broker.kafka.errors import NO_ERROR, Code, code_of, code_of_wire
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.core.errors import MillraceError
from millrace.proto.v1 import produce_pb2 as pb


class ProducerIdRequests:
    """Answers InitProducerId."""

    def __init__(self, parts: KafkaParts) -> None:
        self._local = parts.local

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {ApiKey.INIT_PRODUCER_ID: Served(range(6), self._begin)}

    async def _begin(self, request: Request) -> Any:
        if request.message.transactional_id is not None:
            return _answer(request, Code.INVALID_REQUEST)  # No coordinator is named for one.
        try:
            asked = pb.InitProducerIdRequest()
            found = await self._local.call("InitProducerId", asked, request.caller)
        except MillraceError as error:
            return _answer(request, code_of(error))
        if found.error.code:
            return _answer(request, code_of_wire(found.error))
        return _answer(request, NO_ERROR, found.producer_id, found.producer_epoch)


def _answer(request: Request, code: int, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(
        version=request.version, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
