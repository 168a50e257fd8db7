"""A port that serves clients of Kafka.

Its TLS, its limits of connections and of memory, its quotas, rules and audit log are those of the
gRPC listener of the same side.
"""

from collections.abc import Callable

from millrace.broker.kafka.connection import KafkaServer
from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.local_calls import LocalCalls
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.parts import BrokerAddresses, KafkaParts
from millrace.broker.kafka.served import request_table
from millrace.broker.rpc.byte_listener import ByteListener, server_limits
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.client_services import ClientServices
from millrace.broker.rpc.listeners import SharedByListeners
from millrace.broker.rpc.produce import ProduceService
from millrace.core.kafka_config import KafkaConfig
from millrace.core.listeners_config import KafkaListenerConfig, ListenerEntry
from millrace.runtime.transport.credentials import ServerCredentials


class KafkaListener(ByteListener):
    """A listener of Kafka's protocol, from the bound port to its stop.

    Args:
        entry: which one of the broker it is, and where.
        kafka: settings.
        shared: what it shares with the broker's other listeners.
        credentials: of its connections; None: they are in plain text.

    Raises:
        InvalidConfigError: the address cannot be bound.

    Attributes:
        calls: for its services.
    """

    def __init__(
        self,
        entry: ListenerEntry,
        kafka: KafkaConfig,
        shared: SharedByListeners,
        credentials: ServerCredentials | None,
    ) -> None:
        super().__init__(entry, shared.refusals.metrics, credentials)
        assert isinstance(entry.config, KafkaListenerConfig)
        self._names = Names(entry.config.namespace)
        self.calls = Calls(
            entry.side,
            limits := shared.limits,
            shared.refusals,
            shared.turns,
            quotas=shared.quotas,
            guard=shared.guard,
            under_way=shared.under_way,
        )
        self._server = KafkaServer(
            server_limits(limits, credentials, is_for_brokers=False),
            kafka,
            self.calls,
            entries_max=limits.request_entries_max,
            turns=shared.turns,
            on_failure=self.on_failure,
            on_ended=self.on_ended,
        )
        self.bind(self._server)

    async def answer(
        self, broker: ClientServices, own_address: Callable[[], str]
    ) -> ProduceService:
        """Answer clients from now on; return what the caller has to sweep.

        Args:
            broker: makes the services.
            own_address: returns where clients reach this listener.
        """
        made = broker.make(self.calls)
        methods = [service.methods() for service in (*made.unary, *made.streaming)]
        channel = broker.channel
        parts = KafkaParts(
            broker=broker,
            services=made,
            local=LocalCalls(methods),
            calls=self.calls,
            names=self._names,
            topics=KnownTopics(self._names, lambda: channel.metadata),
            addresses=BrokerAddresses(
                lambda: channel.metadata, broker.broker_id, own_address, self.entry.side
            ),
        )
        self._server.table = request_table(parts)
        await self.serve()
        return made.produce
