"""Opens the listeners of Kafka's protocol that a broker has.

Only then the library of Kafka's messages is loaded, which other brokers do not need.
"""

from typing import TYPE_CHECKING

from millrace.broker.rpc.listeners import Listeners
from millrace.core.broker_config import BrokerConfig
from millrace.core.listeners_config import ListenerProtocol

if TYPE_CHECKING:
    from millrace.broker.kafka.listener import KafkaListener


def open_kafka(config: BrokerConfig, listeners: Listeners) -> "list[KafkaListener]":
    """Bind the listeners of Kafka's protocol, and have them announced and stopped with the others.

    Args:
        config: of the broker.
        listeners: that it has already.

    Raises:
        InvalidConfigError: an address cannot be bound.
    """
    entries = [
        entry for entry in config.listeners.entries if entry.protocol is ListenerProtocol.KAFKA
    ]
    if not entries:
        return []
    from millrace.broker.kafka.listener import KafkaListener

    opened = []
    for entry in entries:
        credentials = listeners.credentials_of(entry)
        listener = KafkaListener(entry, config.kafka, listeners.shared, credentials)
        listeners.add(listener)
        opened.append(listener)
    return opened
