"""What a person is told when brokers are ready."""

from millrace.cli.local.announcement import cluster_greeting
from millrace.cli.local.local_cluster import Ready


def test_whoever_starts_a_cluster_is_told_where_brokers_and_metrics_are() -> None:
    brokers = [Ready("broker-0", 7, "h:1", "h:2"), Ready("broker-1", 8, "h:11", None)]
    assert cluster_greeting(brokers, "/data").splitlines() == [
        "Millrace is up, its data in /data. Ctrl-C stops it.",
        "  broker-0 at h:1, process 7",
        "    metrics: http://h:2/metrics",
        "  broker-1 at h:11, process 8",
        "",
        "Try in another terminal:",
        "  export MILLRACE_BOOTSTRAP=h:1,h:11",
        "  millrace topic create greetings",
        "  millrace cluster describe",
    ]
