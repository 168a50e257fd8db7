"""The share of the throughput of `produce_1kb` that a scrape of the metrics every 5 s costs.

One producer sends as fast as it can to one broker. Slices of 5 s with a scrape in each, by a
program of its own as Prometheus is, alternate with slices without one (`bench/slices.py`). What was
appended is read from the ends of the log, because a look at the metrics page is what is measured.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.directories import run_directory
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import LoadFailedError, until
from bench.records import write_random_records
from bench.sides import fresh_topic
from bench.slices import MEMORY, TOPIC_CONFIG, Sides, Slice, measured, producing

from millrace.client import SyncAdmin

RECORD_BYTES = 1000
PARTITIONS = 4
SCRAPE_S = 5.0
WARM_UP_S = 2.0
SWITCH_S = 0.2
"""How long the scraper may take to be told."""
START_TIMEOUT_S = 30
_SCRAPER = """\
import sys
from urllib.request import urlopen
for _ in sys.stdin:
    with urlopen(sys.argv[1], timeout=10) as page:
        print(len(page.read()), flush=True)
"""


class Scraper:
    """Scrapes a page each time that it is asked to, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.scrapes = 0

    def scrape(self) -> None:
        """Begin to read the page; do not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.scrapes += 1

    def sizes(self) -> list[int]:
        """End it; return the bytes of each page.

        Raises:
            LoadFailedError: it did not get each page.
        """
        printed, _ = self._process.communicate(timeout=START_TIMEOUT_S)
        sizes = [int(line) for line in printed.split()]
        if len(sizes) != self.scrapes or not all(sizes):
            raise LoadFailedError(f"{self.scrapes} scrapes, but pages of {sizes} bytes")
        return sizes


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its slices with and without a scrape."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    rounds: list[Sides] = []
    with (
        run_directory(MEMORY if MEMORY.is_dir() else bench.directory) as directory,
        running_millrace(directory / "millrace") as broker,
        _scraper(broker) as scraper,
    ):
        for number in range(bench.rounds):
            rounds.append(_round(broker, scraper, records, bench.seconds))
            say(f"round {number + 1}/{bench.rounds} {rounds[-1].lost():.4f} lost")
        sizes = scraper.sizes()
    both = Sides.together(rounds)
    return Outcome(
        values={"share of the throughput that a scrape every 5 s costs": both.lost()},
        detail={
            "rounds": [each.lost() for each in rounds],
            "pairs": len(both.off),
            "scrapes": len(sizes),
            "page_bytes": median(sizes),
            "records_per_second": median(each.rate for each in both.off),
            "broker_cpu_lost": both.cpu_lost(),
        },
    )


def _round(broker: Millrace, scraper: Scraper, records: Path, seconds: float) -> Sides:
    """Measure for so many seconds with a scraper, and for as many without."""
    pairs = max(1, round(seconds / SCRAPE_S))
    sides = Sides()
    with (
        SyncAdmin(broker.address) as admin,
        fresh_topic(broker, PARTITIONS, TOPIC_CONFIG) as topic,
        producing(
            broker, topic, PARTITIONS, records, WARM_UP_S + 2 * pairs * (SCRAPE_S + SWITCH_S)
        ),
    ):

        def appended() -> float:
            return sum(each.offset for each in admin.list_offsets(topic).values())

        def switch(is_on: bool) -> None:
            if is_on:
                scraper.scrape()

        def one() -> Slice:
            return measured(appended, broker.pids, SCRAPE_S)

        until(lambda: appended() or None, "the first record", START_TIMEOUT_S)
        time.sleep(WARM_UP_S)
        sides.add_pairs(pairs, switch, one)
    return sides


@contextmanager
def _scraper(broker: Millrace) -> Iterator[Scraper]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRAPER, f"http://{broker.metrics_address}/metrics"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Scraper(process)
    finally:
        process.kill()
        process.communicate()
