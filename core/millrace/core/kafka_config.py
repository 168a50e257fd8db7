"""Settings of what a broker does for clients of Kafka."""

from dataclasses import dataclass

from millrace.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """What clients of Kafka get at the listeners that speak its protocol."""

    auto_create_topics: bool = setting(
        False,
        "Create a topic that a client looks up and that is not there, with the cluster's numbers "
        "of partitions and replicas, if the client asks for that and may create topics. A typing "
        "error makes a topic then.",
        kafka="auto.create.topics.enable",
    )
    requests_in_flight_max: int = setting(
        64,
        "Most requests of one connection that were read and are not answered yet. At the bound the "
        "connection is not read until one is.",
        minimum=1,
        maximum=10_000,
    )
