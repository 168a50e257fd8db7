"""A job's last words say why it failed."""

import argparse

import pytest

from millrace.spark import job

OURS = """An exception was thrown from the Python Proxy
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_DATA_SOURCE_ERROR] it failed
  File "stream_reader.py", line 7, in initialOffset
millrace.core.errors.ConnectionFailedError: no broker can be reached: is one running there?
 SQLSTATE: 38000
=== Streaming Query ===
"""
JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: External scheduler cannot be instantiated
\tat org.apache.spark.SparkContext$.x(SparkContext.scala:1)
Caused by: io.fabric8.kubernetes.client.KubernetesClientException: pods "d" is forbidden
\tat java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OURS, "ConnectionFailedError: no broker can be reached: is one running there?"),
        (JAVA, 'KubernetesClientException: pods "d" is forbidden'),
        ("x: Spark context stopped while waiting for backend\n\tat y", job._NO_EXECUTORS),
        (
            "An error occurred while calling o60.load.\n"
            ": java.lang.IllegalStateException: LiveListenerBus is stopped.\n\tat y",
            "IllegalStateException: LiveListenerBus is stopped.",
        ),
        (
            "Task 0 failed 4 times: ExecutorLostFailure Reason: \nThe executor with id 4 exited "
            "with exit code 137(SIGKILL, possible container OOM).",
            job._MORE_MEMORY,
        ),
        ("\nNo space left on device\n", "RuntimeError: No space left on device"),
        ("", "RuntimeError: "),
    ],
)
def test_the_reason_is_the_innermost_error(text: str, said: str) -> None:
    assert job.reason(RuntimeError(text)) == said


def test_spark_that_stopped_by_itself_is_the_reason_of_any_later_error() -> None:
    error = RuntimeError("An error occurred while calling o60.load.")
    assert job.reason(error, has_stopped=True) == job._NO_EXECUTORS
    assert job.reason(RuntimeError(OURS), has_stopped=True).startswith("ConnectionFailedError")


def test_an_error_of_ours_ends_a_job_without_a_stack_trace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        raise RuntimeError(OURS)

    pytest.importorskip("pyspark")
    with pytest.raises(SystemExit):
        job.run(main)
    told = capfd.readouterr().err
    assert told == "error: ConnectionFailedError: no broker can be reached: is one running there?\n"


def test_a_job_that_fails_ends_with_one_and_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise ValueError("the topic is gone\nand more")

    pytest.importorskip("pyspark")
    with pytest.raises(SystemExit) as ended:
        job.run(main)
    assert ended.value.code == 1
    assert capfd.readouterr().err.splitlines()[-1] == "error: ValueError: the topic is gone"


def test_options_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP", "logs-bootstrap:7092")
    parser = job.new_parser("It reads flights.")
    parser.exit_on_error = False
    options = parser.parse_args(["--pages", "0.0.0.0:8099"])
    assert (options.bootstrap, options.pages) == ("logs-bootstrap:7092", ("0.0.0.0", 8099))
    assert options.page_names == ""
    assert parser.parse_args(["--page-names=a.example.org"]).page_names == "a.example.org"
    for wrong in ("8099", ":8099", "host:", "host:99999", "host:x"):
        with pytest.raises(argparse.ArgumentError, match="is no HOST:PORT"):
            parser.parse_args([f"--pages={wrong}"])
