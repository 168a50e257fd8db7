"""A member of confluent-kafka-python's group that consumes at full speed, and commits as it does by
default.

`settings` has the `group`, and `begin_at`: the monotonic second from which on records count, for
all members of the group alike. Until then they join and read. Then a member reads all that it owns
from the beginning, over and over. All other settings are the client's.
"""

import time

from bench.loads.confluent_consume import GATHER_TIMEOUT_S, MESSAGES_PER_CALL, SILENCE_MAX_S
from bench.loads.spec import Load, Moved, run_from_command_line
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


def consume(load: Load) -> Moved:
    """Consume for the load's time and count the records."""
    settings = dict(load.settings)
    group, begin_at = settings.pop("group"), settings.pop("begin_at")
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 3,
            **settings,
        }
    )
    owned: list[TopicPartition] = []
    changed_at = 0.0
    at_end: set[int] = set()

    def note(places: list[TopicPartition]) -> None:
        nonlocal changed_at
        owned[:] = [
            TopicPartition(load.topic, place.partition, OFFSET_BEGINNING) for place in places
        ]
        changed_at = time.monotonic()

    consumer.subscribe(
        [load.topic],
        on_assign=lambda _, places: note(places),
        on_revoke=lambda _, places: note([]),
    )
    while time.monotonic() < begin_at:
        consumer.consume(MESSAGES_PER_CALL, GATHER_TIMEOUT_S)
    consumer.assign(owned)
    partitions = len(owned)  # A member that ends a moment later gets those of the others.
    records = moved_bytes = 0
    heard = time.monotonic()
    while (seconds := time.monotonic() - begin_at) < load.seconds:
        messages = consumer.consume(MESSAGES_PER_CALL, GATHER_TIMEOUT_S)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENCE_MAX_S:
            raise SystemExit(f"nothing came for {SILENCE_MAX_S} s; it owns {owned}")
        for message in messages:
            error = message.error()
            if error is None:
                value, key = message.value() or b"", message.key() or b""
                moved_bytes += len(value) + len(key)
                records += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(error)
        if len(at_end) == len(owned):
            at_end.clear()
            consumer.assign(owned)
    if begin_at < changed_at < begin_at + load.seconds:
        raise SystemExit(f"the group changed {changed_at - begin_at:.1f} s after the time began")
    detail = {"partitions": partitions}
    consumer.close()
    return Moved(records=records, bytes=moved_bytes, seconds=seconds, detail=detail)


if __name__ == "__main__":
    run_from_command_line(consume)
