"""Memory above idle while a log of 10 M different keys is compacted with the default map, in MB.

One broker with default settings, records of 100 B. The map holds half of the keys, so the log takes
several passes. The value is the broker's highest resident size of all rounds, less what it had
before.
"""

from statistics import median

from bench.comparisons.compaction import BACKOFF_MS, RECORDS, MillraceSide, numbered_cells
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace
from bench.records import KEY_BYTES, read_records, write_random_records

RECORD_BYTES = 100


def measure(bench: Bench) -> Outcome:
    """Compact one log a round."""
    values = read_records(write_random_records(bench.directory / "records", RECORD_BYTES))
    records = RECORDS if bench.is_full else RECORDS // 5
    directory = bench.directory / "millrace"
    taken: list[float] = []
    passes: list[int] = []
    for number in range(bench.rounds):
        storage = f"cleaner_backoff_ms = {BACKOFF_MS}"
        with running_millrace(directory / str(number), storage=storage) as millrace:
            side = MillraceSide(millrace=millrace, directory=directory / str(number))
            cleaned = side.clean(
                numbered_cells(records, values), records * (RECORD_BYTES + KEY_BYTES)
            )
        taken.append(cleaned.memory_mb)
        passes.append(cleaned.passes)
        say(f"round {number + 1}/{bench.rounds} {cleaned}")
    return Outcome(
        values={"MB above idle": max(taken)},
        detail={"median": median(taken), "rounds": taken, "passes": passes, "keys": records},
    )
