"""The throughput of 1 KB records by TLS over that in plain text: our share over Kafka's.

Each broker has a port of either kind, and its clients come by both in turn, to the same topics. Our
clients are those of `produce_1kb` and `consume_1kb`, and Kafka's are confluent-kafka's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.comparisons.pair import Pair
from bench.measure import Bench, Outcome, median_ratio, summaries
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.records import write_random_records
from bench.sides import Consume, Produce

from millrace.runtime.certificates import Names, issue, new_authority

RECORD_BYTES = 1000
TOPIC = "filled"
PARTITIONS = 4
FILLED_RECORDS = 2_000_000
SIDES = ("millrace", "confluent")


@dataclass(frozen=True, kw_only=True)
class _ByTls:
    """A broker that clients reach at its port with TLS; all else goes by the other one."""

    broker: Any
    address: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)


@dataclass(frozen=True, kw_only=True)
class _Both:
    pair: Pair
    kafka_tls: _ByTls
    millrace_tls: _ByTls
    ca: Path

    def sides(
        self, ours: Produce | Consume, theirs: Produce | Consume
    ) -> dict[str, Produce | Consume]:
        """Return both clients in plain text, and by TLS."""
        security = {"security.protocol": "ssl", "ssl.ca.location": str(self.ca)}
        return {
            "millrace": ours,
            "millrace_tls": replace(
                ours,
                broker=self.millrace_tls,
                settings={**ours.settings, "tls_ca_file": str(self.ca)},
            ),
            "confluent": theirs,
            "confluent_tls": replace(
                theirs, broker=self.kafka_tls, settings={**theirs.settings, **security}
            ),
        }


def measure(bench: Bench) -> Outcome:
    """Measure consumers, and then producers, each interleaved."""
    with _running(bench.directory) as both:
        pair = both.pair
        pair.fill(TOPIC, PARTITIONS, FILLED_RECORDS)
        consumed = bench.interleave(
            both.sides(pair.consume("columns", TOPIC), pair.confluent_consume(TOPIC))
        )
        for broker in (pair.kafka, pair.millrace):
            broker.delete_topic(TOPIC)
        produced = bench.interleave(
            both.sides(pair.produce("batch"), pair.confluent_produce("batch"))
        )
    shares = {
        name: {side: median_ratio(runs[f"{side}_tls"], runs[side]) for side in SIDES}
        for name, runs in (("produce", produced), ("consume", consumed))
    }
    return Outcome(
        values={
            f"to {name}, our share over Kafka's": share["millrace"] / share["confluent"]
            for name, share in shares.items()
        },
        detail={
            "tls_over_plain": shares,
            "produce": summaries(produced),
            "consume": summaries(consumed),
        },
    )


@contextmanager
def _running(directory: Path) -> Iterator[_Both]:
    """Run both systems, each with a port of TLS beside the other one."""
    authority = new_authority("bench", days=1)
    made = issue(authority, Names(common="broker", hosts=["127.0.0.1"]), days=1)
    ca, certificate, key, keystore = (
        directory / name for name in ("ca.crt", "broker.crt", "broker.key", "broker.pem")
    )
    ca.write_bytes(authority.certificate)
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    keystore.write_bytes(made.key + made.certificate)
    outside = f'port = 0\ntls_certificate_file = "{certificate}"\ntls_key_file = "{key}"'
    with (
        running_kafka(directory / "kafka", keystore=keystore) as kafka,
        running_millrace(directory / "millrace", outside=outside) as millrace,
    ):
        yield _Both(
            pair=Pair(
                kafka=kafka,
                millrace=millrace,
                directory=directory,
                records=write_random_records(directory / "records", RECORD_BYTES),
                record_bytes=RECORD_BYTES,
            ),
            kafka_tls=_ByTls(broker=kafka, address=kafka.tls_address),
            millrace_tls=_ByTls(broker=millrace, address=millrace.outside_address),
            ca=ca,
        )
