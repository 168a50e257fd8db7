"""The broker's peak resident memory during the loads of `produce_1kb` and of `many_clients`: the
maximum of all rounds, on one broker.
"""

from bench.many_clients import RATE_EACH, Crowd
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace
from bench.processes import reset_peak, status_bytes
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import Produce

TOPIC = "single-records"
PARTITIONS = 4


def measure(bench: Bench) -> Outcome:
    """Load the broker both ways in turn and read its high-water mark after each."""
    records = write_random_records(bench.directory / "records", 1000)
    peaks: dict[str, list[float]] = {"produce_1kb": [], "many_clients": []}
    with running_millrace(bench.directory / "millrace") as millrace:
        millrace.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
        produce = Produce(
            broker=millrace,
            module="millrace_produce",
            way="batch",
            records_file=records,
            topic_config=MILLRACE_TOPIC["replicated"],
            settings=MILLRACE_PRODUCER,
        )
        crowd = Crowd(
            address=millrace.address,
            way="millrace",
            topic=TOPIC,
            log=bench.directory / "clients.log",
        )
        for number in range(1, bench.rounds + 1):
            peaks["produce_1kb"].append(produce(bench.seconds).broker.peak_rss_bytes / 1e6)
            reset_peak(millrace.pid)
            crowd.run(RATE_EACH, bench.seconds)
            peaks["many_clients"].append(status_bytes(millrace.pid, "VmHWM") / 1e6)
            say(f"round {number}/{bench.rounds} { ({name: of[-1] for name, of in peaks.items()}) }")
    return Outcome(
        values={"MB resident at the peak": max(max(of_load) for of_load in peaks.values())},
        detail=peaks,
    )
