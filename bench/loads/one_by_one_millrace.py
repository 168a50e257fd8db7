"""Single records through Millrace, one after the other (`bench.loads.one_by_one`)."""

from bench.loads.one_by_one import measure
from bench.loads.spec import Load, Moved, run_from_command_line

from millrace.client import SyncProducer


def run(load: Load) -> Moved:
    """Produce to one partition."""
    with SyncProducer(load.address, **load.settings["producer"]) as producer:
        return measure(load, lambda value: _send_and_wait(producer, load.topic, value))


def _send_and_wait(producer: SyncProducer, topic: str, value: bytes) -> None:
    producer.send(topic, value, partition=0).result()


if __name__ == "__main__":
    run_from_command_line(run)
