"""What the program of a job has around its query: where brokers are, pages to be watched by, and
last words that say why it failed.

    parser = argparse.ArgumentParser(...)
    job.add_options(parser)
    ...
    with job.watched(spark, options):
        await_queries(query)

    if __name__ == "__main__":
        job.run(main)

A driver's log ends with two stack traces of Java and Python each inside the other. Kubernetes keeps
the end of a log as the pod's status, so `run` ends it with one line that says what happened.
"""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS: Final = re.compile(r"^(?:\w+\.)*millrace\.[\w.]*?(\w+Error): (.+)$", re.M)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.M)
_NO_BACKEND: Final = "Spark context stopped while waiting for backend"
_ADVICE: Final = (
    "Spark could not start executors: the API server refused their pods, as the log above says"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all jobs take: `--bootstrap` and `--pages`."""
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("MILLRACE_BOOTSTRAP", "localhost:7092"),
        metavar="HOST:PORT",
        help="brokers, with commas (default: MILLRACE_BOOTSTRAP, else localhost:7092)",
    )
    parser.add_argument(
        "--pages",
        type=_address,
        metavar="HOST:PORT",
        help="serve /metrics and /healthz about the queries there, as 0.0.0.0:8099 in a pod",
    )


@contextmanager
def watched(spark: "SparkSession", options: argparse.Namespace) -> Iterator[None]:
    """Serve the pages, if they are asked for, while the block runs; see `progress`."""
    if options.pages is None:
        yield
        return
    from millrace.spark.progress import watch_queries

    host, port = options.pages
    with watch_queries(spark, host=host, port=port, bootstrap_servers=options.bootstrap):
        yield


def run(main: Callable[[], None]) -> None:
    """Run a job; when it fails, end with 1, and the log with a line that says why."""
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        _stop_spark()
        sys.stderr.write(f"error: {reason(error)}\n")
        sys.stderr.flush()
        sys.exit(1)


def reason(error: Exception) -> str:
    """Return in one line why a job failed: the innermost error that is ours, else Spark's."""
    text = str(error)
    if ours := _OURS.findall(text):
        return ": ".join(ours[-1])
    if _NO_BACKEND in text:
        return _ADVICE
    if causes := _CAUSE.findall(text):
        return ": ".join(causes[-1])
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _stop_spark() -> None:
    """Stop the session, so that nothing of it speaks after the last words."""
    from pyspark.sql import SparkSession

    if (session := SparkSession.getActiveSession()) is not None:
        with suppress(Exception):  # Its JVM may be what has failed.
            session.stop()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT, as 0.0.0.0:8099")
    return host, int(port)
