"""Settings of what a broker does for clients of Kafka."""

from dataclasses import dataclass

from millrace.core.settings import Unit, setting


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
    fetch_session_partitions_max: int = setting(
        100_000,
        "Most partitions that the fetch sessions of all connections of one listener may follow "
        "together; a session counts as 100 at the least. A client for which there is no room has "
        "no session: it names all its partitions in each fetch, and is told of all.",
        minimum=0,
        maximum=10_000_000,
    )
    fetch_response_bytes_max: int = setting(
        4 << 20,
        "Bytes of records in one answer to a fetch by Kafka's protocol, except for a larger first "
        "batch. What is beyond `limits.fetch_response_bytes_max` is sent only while "
        "`large_answers_bytes_max` has room for it.",
        unit=Unit.BYTES,
        minimum=1024,
        maximum=512 << 20,
        kafka="fetch.max.bytes",
    )
    large_answers_bytes_max: int = setting(
        128 << 20,
        "Most memory of one listener for what answers to fetches that are not sent yet have beyond "
        "`limits.fetch_response_bytes_max`. So slow readers of large answers have others read by "
        "smaller ones, and take no more memory.",
        unit=Unit.BYTES,
        minimum=0,
        maximum=1 << 40,
    )
    converted_bytes_max: int = setting(
        64 << 20,
        "Most memory of one listener for batches that it has converted, as several readers of a "
        "topic ask for the same: those of Millrace's clients for Kafka's, and those of Kafka's for "
        "Millrace's of earlier releases, which do not know them. 0: none is kept.",
        unit=Unit.BYTES,
        minimum=0,
        maximum=1 << 40,
    )
