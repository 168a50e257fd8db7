"""Seconds for a scrape of a broker with 10,000 partitions.

One broker with default settings, 998 topics of ten partitions with names as long as they may be
(the cluster's own topic is the rest), a record in each of them, and positions of ten groups in
all of them. `detail` has the size, with
its own bound. The value is the slowest of the scrapes.
"""

import time
from statistics import median
from urllib.request import urlopen

from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace

from millrace.client import Position, SyncAdmin, SyncProducer

TOPICS = 998
PARTITIONS = 10
GROUPS = 10
NAME_CHARACTERS = 249
SETUP_MS = 600_000
SETTLE_S = 12
"""Sizes and lags are measured every few seconds."""


def measure(bench: Bench) -> Outcome:
    """Fill the broker, then scrape once a second."""
    topics = [f"{number:04d}".ljust(NAME_CHARACTERS, "t") for number in range(TOPICS)]
    with running_millrace(bench.directory / "millrace") as millrace:
        with SyncAdmin(millrace.address) as admin:
            for topic in topics:
                admin.create_topic(topic, PARTITIONS, 1, {"durability": "replicated"})
            with SyncProducer(
                millrace.address, max_block_ms=SETUP_MS, delivery_timeout_ms=SETUP_MS
            ) as producer:
                for topic in topics:
                    producer.send(topic, b"a record")
                producer.flush()
            places = [(topic, number) for topic in topics for number in range(PARTITIONS)]
            for group in range(GROUPS):
                admin.commit_positions(f"group-{group}", dict.fromkeys(places, Position(0)))
        say(f"{TOPICS * PARTITIONS:,} partitions in {TOPICS:,} topics")
        time.sleep(SETTLE_S)
        taken, size, series = [], 0, 0
        for _ in range(max(int(bench.seconds), bench.rounds)):
            begun = time.perf_counter()
            with urlopen(f"http://{millrace.metrics_address}/metrics", timeout=60) as page:
                content = page.read()
            taken.append(time.perf_counter() - begun)
            size = len(content)
            series = sum(not line.startswith(b"#") for line in content.splitlines())
            time.sleep(1)
    return Outcome(
        values={"slowest scrape in s": max(taken), "MB of a scrape": size / 1e6},
        detail={
            "scrapes": taken,
            "median": median(taken),
            "megabytes": size / 1e6,
            "series": series,
        },
    )
