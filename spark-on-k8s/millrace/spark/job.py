"""The parts of a job's program around its query: brokers' addresses, pages for monitoring, and a
last line that says why it failed.

    parser = job.new_parser(__doc__)
    ...
    with job.watched(spark, options):
        await_queries(query)

    if __name__ == "__main__":
        job.run(main)

A failed driver's log ends with nested stack traces of Java and Python. Kubernetes keeps the end of
a log as the pod's status, so `run` ends it with one line that says what happened.
"""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from millrace.core.addresses import PORT_MAX
from millrace.core.numbers import parse_whole_number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS: Final = re.compile(r"^(?:\w+\.)*millrace\.[\w.]*?(\w+Error): (.+)$", re.M)
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+): (.+)$", re.M)
_NO_BACKEND: Final = "Spark context stopped while waiting for backend"
_NO_EXECUTORS: Final = (
    "Spark has no executors: the API server refused their pods, as the log above says, or they "
    "ended before they began, as with too little memory"
)
_OUT_OF_MEMORY: Final = "possible container OOM"
_MORE_MEMORY: Final = (
    "an executor took more memory than its pod may have (OOMKilled): raise spark.executor."
    "memoryOverhead, or lower its cores"
)


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all jobs: `--bootstrap`, `--pages` and `--page-names`."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--bootstrap",
        default=os.environ.get("MILLRACE_BOOTSTRAP", "localhost:7092"),
        metavar="HOST:PORT",
        help="brokers, with commas (default: MILLRACE_BOOTSTRAP, else localhost:7092)",
    )
    made.add_argument(
        "--pages",
        type=_address,
        metavar="HOST:PORT",
        help="serve /metrics and /healthz about the queries there, as 0.0.0.0:8099 in a pod",
    )
    made.add_argument(
        "--page-names",
        default="",
        metavar="NAME,NAME",
        help="names in the public DNS under which these pages are asked for (default: none)",
    )
    return made


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job with one stream: `--checkpoint`, its batches, and when it ends."""
    add = parser.add_argument
    add_checkpoint(parser)
    add_tasks(parser)
    add(
        "--batch-records",
        type=int,
        default=100_000,
        metavar="N",
        help="records in a micro-batch at the most (default: 100,000)",
    )
    add("--every", default="1 second", help="time from batch to batch (default: 1 second)")
    add("--available-now", action="store_true", help="read what is there, then end")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option of the checkpoint's place."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="where the query keeps how far it is; it belongs to the output: keep both, or neither",
    )


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add the option of the number of tasks."""
    parser.add_argument(
        "--tasks",
        type=int,
        default=2,
        metavar="N",
        help="tasks of each stage at the most: as many as cores (default: 2)",
    )


def add_lateness(parser: argparse.ArgumentParser) -> None:
    """Add the option of how late a record may come in windows over event time."""
    parser.add_argument(
        "--lateness",
        default="7 days",
        help="how much earlier than the latest event so far another one may be and still count "
        "(default: 7 days). Partitions are not read in step: the longer the backlog, the more",
    )


def trigger(options: argparse.Namespace) -> dict[str, Any]:
    """Return the trigger of a stream by its options, for `DataStreamWriter.trigger`."""
    return {"availableNow": True} if options.available_now else {"processingTime": options.every}


@contextmanager
def watched(spark: "SparkSession", options: argparse.Namespace) -> Iterator[None]:
    """Serve the pages, if they are asked for, while the block runs; see `progress`."""
    if options.pages is None:
        yield
        return
    from millrace.spark.progress import watch_queries

    host, port = options.pages
    with watch_queries(
        spark,
        host=host,
        port=port,
        bootstrap_servers=options.bootstrap,
        names=options.page_names,
    ):
        yield


def run(main: Callable[[], None]) -> None:
    """Run a job; when it fails, end with 1, and the log with a line that says why.

    An error of ours says all by itself; for any other the traceback stands before that line.
    """
    try:
        main()
    except Exception as error:
        if not _OURS.search(str(error)):
            traceback.print_exc()
        has_stopped = _has_stopped()
        _stop_spark()
        sys.stderr.write(f"error: {reason(error, has_stopped=has_stopped)}\n")
        sys.stderr.flush()
        sys.exit(1)


def reason(error: Exception, *, has_stopped: bool = False) -> str:
    """Return in one line why a job failed: the innermost error that is ours, else Spark's.

    Args:
        has_stopped: whether Spark has stopped by itself, as it does after too many executors
            failed. The error is then about any call that found it stopped.
    """
    text = str(error)
    if ours := _OURS.findall(text):
        return ": ".join(ours[-1])
    if _OUT_OF_MEMORY in text:
        return _MORE_MEMORY
    if has_stopped or _NO_BACKEND in text:
        return _NO_EXECUTORS
    if causes := _CAUSE.findall(text):
        return ": ".join(causes[-1])
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _has_stopped() -> bool:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return False
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # Its JVM has ended.
        return True


def _stop_spark() -> None:
    """Stop the session, so that it logs nothing after the last line."""
    from pyspark.sql import SparkSession

    with suppress(Exception):  # Its JVM may be what has failed.
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    number = parse_whole_number(port, PORT_MAX)
    if not colon or not host or number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT, as 0.0.0.0:8099")
    return host, number
