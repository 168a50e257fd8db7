"""Kill what a job needs for as long as you like; the last line is JSON.

python -m tests.spark_jobs --job carrier_delays --kills 20 --seed 7
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source
from tests.spark_jobs.kills import RUNS, Victim, plan_of, run, victims_of


def main() -> None:
    """Run the jobs that the command line names, one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=RUNS, action="append", help="of the jobs (default: all)")
    parser.add_argument("--kills", type=int, default=4, help="for each job (default: 4)")
    parser.add_argument("--days", type=int, default=DAYS_OF_YEAR, help="of flights (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("--folder", type=Path, help="keeps all files (default: nothing is kept)")
    options = parser.parse_args()
    source = read_source(options.days)
    with tempfile.TemporaryDirectory(prefix="millrace-jobs-") as passing:
        bad = 0
        for job in options.job or RUNS:
            folder = (options.folder or Path(passing)) / job
            folder.mkdir(parents=True)
            victims = victims_of(job) if RUNS[job].topics else [Victim.DRIVER, Victim.BROKER]
            plan = plan_of(options.kills, options.seed, victims)
            outcome = run(job, plan, source, folder, say=lambda line: print(line, flush=True))
            print(json.dumps(asdict(outcome)), flush=True)
            bad += bool(outcome.difference)
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
