"""Spark writes and reads by TLS, with a certificate of its own."""

from pathlib import Path
from typing import Any

from tests.fakes.certificate_files import CertificateFiles
from tests.integration.conftest import StartBroker

from millrace.client import SyncAdmin


def test_rows_go_and_come_by_tls_with_the_certificate_that_options_name(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    shown, own = files.make("b", "localhost", "127.0.0.1"), files.make("spark")
    broker = start_broker(
        {
            "listeners.clients.tls_certificate_file": shown.certificate,
            "listeners.clients.tls_key_file": shown.key,
            "listeners.clients.tls_client_ca_file": shown.ca,
        }
    )
    with SyncAdmin(
        broker.address,
        tls_ca_file=own.ca,
        tls_certificate_file=own.certificate,
        tls_key_file=own.key,
    ) as admin:
        admin.create_topic("clicks")
    options = {
        "bootstrap.servers": broker.address,
        "tlsCaFile": own.ca,
        "tlsCertificateFile": own.certificate,
        "tlsKeyFile": own.key,
    }
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    rows.write.format("millrace").options(**options, topic="clicks").mode("append").save()
    found = spark.read.format("millrace").options(**options, subscribe="clicks").load()
    values = sorted(int(row.value) for row in found.select("value").collect())
    assert values == list(range(100))
