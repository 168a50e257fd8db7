"""The share of the throughput of `produce_1kb` that a scrape of the metrics every 5 s costs.

One producer sends as fast as it can to one broker. Slices of 5 s with a scrape in each, by a
program of its own as Prometheus is, alternate with slices without one (`bench/slices.py`). What was
appended is read from the ends of the log, because a look at the metrics page is what is measured.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.millrace_broker import Millrace
from bench.processes import LoadFailedError
from bench.slices import Sides, broker_in_memory, cost

from millrace.client import SyncAdmin

SCRAPE_S = 5.0
ENDS_S_MAX = 30
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
        printed, _ = self._process.communicate(timeout=ENDS_S_MAX)
        sizes = [int(line) for line in printed.split()]
        if len(sizes) != self.scrapes or not all(sizes):
            raise LoadFailedError(f"{self.scrapes} scrapes, but pages of {sizes} bytes")
        return sizes


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its slices with and without a scrape."""
    rounds: list[Sides] = []
    with broker_in_memory(bench) as (broker, records), _scraper(broker) as scraper:

        def switch(_: SyncAdmin, is_on: bool) -> None:
            if is_on:
                scraper.scrape()

        for number in range(bench.rounds):
            rounds.append(
                Sides.of(
                    broker, records, bench.seconds, SCRAPE_S, appended=_appended, switch=switch
                )
            )
            say(f"round {number + 1}/{bench.rounds} {rounds[-1].lost():.4f} lost")
        sizes = scraper.sizes()
    return cost(
        "a scrape every 5 s costs",
        rounds,
        "records_per_second",
        scrapes=len(sizes),
        page_bytes=median(sizes),
    )


def _appended(admin: SyncAdmin, topic: str) -> float:
    return sum(end.offset for end in admin.list_offsets(topic).values())


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
