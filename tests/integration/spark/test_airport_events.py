"""The job from topics to topics, `spark-on-k8s/jobs/airport_events.py`, and what it rejects."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from demo.spark_program import JOBS
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker
from tests.integration.spark.written import create, records

from millrace.client import SyncAdmin, SyncProducer

pytestmark = pytest.mark.timeout(300)  # Longer than both queries may take.
FLIGHT = {"carrier": "UA", "flight": 1, "origin": "EWR", "time_hour": "2013-01-01T10:00:00Z"}
BAD = {
    b"not a flight": b"no JSON of a flight",
    b"": b"no JSON of a flight",
    b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"}': b"origin is missing",
    b'{"carrier":"UA","origin":"EWR"}': b"time_hour is missing",
}


def test_what_is_no_event_goes_to_its_own_topic_in_the_same_transaction(
    start_broker: StartBroker, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(JOBS)
    job = importlib.import_module("airport_events")
    broker = start_broker()
    create(broker, "flights", "events", "rejected", partitions=1)
    values = [json.dumps(FLIGHT).encode(), *BAD, json.dumps(FLIGHT | {"flight": 2}).encode()]
    with SyncProducer(broker.address) as producer:
        for value in values:
            producer.send("flights", value, key=b"UA1")
    for _ in range(2):  # The second one finds all of it done.
        run(job, spark, broker, tmp_path / "checkpoint")
    events = records(broker, "events")
    assert [json.loads(event.value)["flight"] for event in events] == [1, 2]
    assert {event.key for event in events} == {b"EWR"}
    rejected = records(broker, "rejected")
    assert {record.value: dict(record.headers)["error.reason"] for record in rejected} == BAD
    assert [(r.key, dict(r.headers)["source.offset"]) for r in rejected] == [
        (b"UA1", b"%d" % offset) for offset in range(1, 5)
    ]
    with SyncAdmin(broker.address) as admin:
        (only,) = admin.list_transactions()
        found = admin.describe_transaction(only.transactional_id)
    assert found is not None
    assert found.version is not None
    assert (found.number, found.version.number) == (1, 0), "both topics have one transaction"


def run(job: Any, spark: Any, broker: RunningBroker, checkpoint: Path) -> None:
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = job.parsed(stream, "a flight", job.FLIGHT)
    query = (
        job.rows(parsed, "events", "rejected")
        .writeStream.format("millrace")
        .option("bootstrap.servers", broker.address)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
