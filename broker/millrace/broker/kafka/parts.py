"""What the modules of requests are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.local_calls import LocalCalls
from millrace.broker.kafka.names import Names
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.client_services import ClientServices, MadeServices
from millrace.core.addresses import split_address
from millrace.core.ids import BrokerId
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerRegistration, Listener


class BrokerAddresses:
    """Where clients of a listener reach each broker by Kafka's protocol.

    Args:
        image: returns the metadata.
        own_id: of this broker.
        own_address: returns this broker's `host:port`; the metadata may not have it yet.
        side: of the listener.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        own_id: BrokerId,
        own_address: Callable[[], str],
        side: Listener,
    ) -> None:
        self._image = image
        self.own_id = own_id
        self._own_address = own_address
        self._side = side

    def of(self, broker_id: BrokerId) -> tuple[str, int] | None:
        """Return host and port of a broker; None: clients of this listener do not reach it."""
        address = ""
        if broker_id == self.own_id:
            address = self._own_address()
        elif (broker := self._image().broker(broker_id)) is not None and not broker.is_fenced:
            address = broker.kafka_addresses.at(self._side)
        return split_address(address) if address else None

    def living(self) -> list[tuple[BrokerRegistration, tuple[str, int]]]:
        """Return the brokers that are reached, with host and port, by their ids."""
        brokers = sorted(self._image().cluster.brokers.items())
        return [(broker, place) for key, broker in brokers if (place := self.of(key)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaParts:
    """What the modules of one listener share.

    Attributes:
        broker: the parts of the broker.
        services: of this listener: Millrace's own, whose streams nobody opens here.
        local: calls their methods.
        calls: of this listener.
        names: of its namespace.
        topics: in it.
        addresses: of brokers, for its clients.
    """

    broker: ClientServices
    services: MadeServices
    local: LocalCalls
    calls: Calls
    names: Names
    topics: KnownTopics
    addresses: BrokerAddresses

    @property
    def image(self) -> MetadataImage:
        """The latest metadata; what this broker leads and follows may be behind."""
        return self.broker.channel.metadata
