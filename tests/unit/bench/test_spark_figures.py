"""What Spark's figures make of what Spark says."""

from pathlib import Path
from zlib import crc32

import pytest
from bench.processes import LoadFailedError

_REASON = "needs confluent-kafka: sh requirements/install.sh bench"
spark_read = pytest.importorskip("bench.comparisons.spark_read", reason=_REASON)
spark_latency = pytest.importorskip("bench.figures.spark_latency", reason=_REASON)


def test_a_record_is_done_with_the_first_batch_that_ends_after_it() -> None:
    batches = [
        {"done_ms": 5000.0, "end": {"t": {"0": 2}}},
        {"done_ms": 6000.0, "end": {"t": {"0": 2, "1": 1}}},
        {"done_ms": 7000.0, "end": {"t": {"0": 3, "1": 1}}},
    ]
    sent = {
        "partitions": [0, 0, 1, 0],
        "offsets": [0, 1, 0, 2],
        "due_ms": [1000.0, 3500.0, 4000.0, 4500.0],
    }
    # The first was due while the load warmed up.
    assert list(spark_latency._latencies_ms(batches, sent, "t")) == [1500.0, 2000.0, 2500.0]
    with pytest.raises(LoadFailedError, match="has not read partition 0 to its end"):
        spark_latency._latencies_ms(batches[:2], sent, "t")


def test_what_spark_has_read_must_be_what_was_written(tmp_path: Path) -> None:
    values = [b"aa", b"bb", b"cc"]
    records = tmp_path / "records"
    records.write_bytes(b"\n".join(values))
    written = [values[0], *values, *values[:1]]
    counted = {"records": 5, "bytes": 10, "crc_sum": sum(map(crc32, written))}
    spark_read.check_counted(counted, 4, records)
    with pytest.raises(LoadFailedError, match="was written"):
        spark_read.check_counted({**counted, "crc_sum": counted["crc_sum"] + 1}, 4, records)
