"""Records through Kafka at a steady rate, each with its times (`bench.loads.steady`)."""

from bench.loads.spec import Load, Moved, run_from_command_line
from bench.loads.steady import OnDone, write
from confluent_kafka import Producer

FLUSH_TIMEOUT_S = 120


def run(load: Load) -> Moved:
    """Produce until SIGTERM."""
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "enable.idempotence": True,
            "log_level": 0,
            **load.settings["producer"],
        }
    )

    def send(partition: int, value: bytes, done: OnDone) -> None:
        producer.produce(
            load.topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: done(error is None),
        )

    return write(load, send, producer.poll, lambda: producer.flush(FLUSH_TIMEOUT_S))


if __name__ == "__main__":
    run_from_command_line(run)
