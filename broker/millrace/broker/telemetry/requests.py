"""Metrics of requests: how many of each kind there were, and how long each phase of them took.

Labels are bounded: methods by those that the broker has, phases by those named here.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from millrace.broker.telemetry.loop_metrics import LoopHistogram

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_CALL_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10)
"""Fewer: there are dozens of methods, and some answer only when there is news."""


class RequestMetrics:
    """Histograms by their Prometheus names, in seconds.

    Args:
        registry: that they join.

    Attributes:
        produce_check, produce_append, produce_send: the phases of a produce request, in their
            order. The first one includes waiting for memory and for a thread, the second one the
            flush and the replication.
        fetch_read, fetch_send: the phases of a fetch response.
        fetch_disk_reads: responses that the page cache could not serve.
        flush: of one log.
        replicate: from there to the high watermark.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, meaning: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"millrace_{name}_seconds", meaning, [label], registry=registry, buckets=buckets
            )

        produce = LoopHistogram(
            "millrace_produce_seconds",
            "Time of produce requests by phase: check (with waiting for memory and a thread), "
            "append (write, flush, replication), send (until the transport has taken the answer).",
            "phase",
            _SECONDS,
            registry,
        )
        fetch = LoopHistogram(
            "millrace_fetch_seconds",
            "Time of fetch responses by phase: read (from page cache or disk), send (until the "
            "transport has taken the response, which a slow reader delays).",
            "phase",
            _SECONDS,
            registry,
        )
        self.produce_check = produce.labels("check")
        self.produce_append = produce.labels("append")
        self.produce_send = produce.labels("send")
        self.fetch_read = fetch.labels("read")
        self.fetch_send = fetch.labels("send")
        self.fetch_disk_reads = Counter(
            "millrace_fetch_disk_reads",
            "Fetch responses for which the page cache did not have all records.",
            registry=registry,
        )
        self.flush = histogram(
            "flush", "Time of flushes before acknowledgements, by log directory.", "log_dir",
            _SECONDS,
        )  # fmt: skip
        self.replicate = Histogram(
            "millrace_replicate_seconds",
            "Time from when batches are durable on their leader until they are committed. In each "
            "partition one measurement begins when the one before has ended.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._calls = histogram(
            "call",
            "Time of calls with one request and one response, by method; some wait for news.",
            "method",
            _CALL_SECONDS,
        )
        self._methods: dict[str, Histogram] = {}

    def called(self, method: str, seconds: float) -> None:
        """Count a call that was answered or refused."""
        histogram = self._methods.get(method)
        if histogram is None:
            histogram = self._methods[method] = self._calls.labels(method)
        histogram.observe(seconds)
