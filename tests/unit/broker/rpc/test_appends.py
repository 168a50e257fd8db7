"""What is refused before a batch is appended, whatever protocol it came by."""

from types import SimpleNamespace

import pytest
from tests.fakes.batch import header_of
from tests.fakes.cluster import Cluster
from tests.fakes.stamped_batches import bytes_of, stamped_batch

from millrace.broker.rpc.appends import Appending
from millrace.core.errors import UnsupportedFeatureError
from millrace.core.ids import BrokerId
from millrace.core.metadata.broker_levels import TRANSACTIONS
from millrace.core.metadata.image import MetadataImage
from millrace.core.records.header import parse_header


def appending(image: MetadataImage) -> Appending:
    """Return what knows the metadata alone."""
    nothing = SimpleNamespace()
    return Appending(
        partitions=SimpleNamespace(image=image),  # type: ignore[arg-type]
        topics=nothing,  # type: ignore[arg-type]
        producer_ids=nothing,  # type: ignore[arg-type]
        early=nothing,  # type: ignore[arg-type]
        joining=nothing,  # type: ignore[arg-type]
        refusals=nothing,  # type: ignore[arg-type]
        request_timeout_ms_max=1,
    )


def test_kafka_batches_are_refused_while_a_broker_would_take_them_for_damage() -> None:
    """K4."""
    kafka = parse_header(bytes_of(stamped_batch(0, as_kafka=True)))
    cluster = Cluster()
    appending(cluster.driver.image).check_format(kafka)
    cluster.driver.kill(BrokerId(1))
    cluster.driver.levels[BrokerId(1)] = TRANSACTIONS
    cluster.restart(1, "2")
    before = appending(cluster.driver.image)
    with pytest.raises(UnsupportedFeatureError, match="upgrade 'b1' first"):
        before.check_format(kafka)
    before.check_format(header_of())  # One of columns.
