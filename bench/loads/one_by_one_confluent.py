"""Single records through Kafka, one after the other (`bench.loads.one_by_one`)."""

from bench.loads.one_by_one import measure
from bench.loads.spec import Load, Moved, run_from_command_line
from confluent_kafka import KafkaException, Producer

POLL_TIMEOUT_S = 30


def run(load: Load) -> Moved:
    """Produce to one partition."""
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 3,
            **load.settings["producer"],
        }
    )

    def send_and_wait(value: bytes) -> None:
        outcomes: list[object] = []
        producer.produce(
            load.topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
        producer.poll(POLL_TIMEOUT_S)
        if outcomes != [None]:
            raise KafkaException(*outcomes)

    return measure(load, send_and_wait)


if __name__ == "__main__":
    run_from_command_line(run)
