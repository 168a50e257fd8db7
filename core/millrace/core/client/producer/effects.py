"""What the sender has its shell do, and the answers that it takes."""

from dataclasses import dataclass

from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.routing.router import Effect as RoutingEffect
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId, LeaderEpoch


@dataclass(slots=True)
class Transmit:
    """Effect: write a request with these batches to the broker's produce stream.

    The answer goes to `on_answer` with the correlation id. With `acks=0` the shell calls that when
    the transport has taken the request: until then the request counts as in flight.
    """

    broker_id: BrokerId
    correlation_id: int
    batches: list[tuple[ProducerBatch, LeaderEpoch]]


@dataclass(slots=True)
class Complete:
    """Effect: the batch is done. Release its memory and wake its waiters."""

    batch: ProducerBatch


@dataclass(slots=True)
class Disconnect:
    """Effect: give the stream up; `on_disconnected` follows."""

    broker_id: BrokerId
    reason: str


@dataclass(slots=True)
class AllocateProducerId:
    """Effect: ask for a producer id until there is one; `on_producer_id` follows.

    Each failure goes to `on_no_producer_id`.
    """


Effect = Transmit | Complete | Disconnect | AllocateProducerId | RoutingEffect


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a broker did not append a batch."""

    error: MillraceError
    retriable: bool


Answer = Acknowledged | Refusal
