import pytest

from millrace.core.quotas.quota import Bucket, Quota, QuotaEntity, QuotaKind
from millrace.proto.quotas import (
    bucket_from_wire,
    bucket_to_wire,
    quota_from_wire,
    quota_to_wire,
)
from millrace.proto.v1 import cluster_pb2


@pytest.mark.parametrize(
    "entity",
    [
        QuotaEntity(principal="", client_id="app"),
        QuotaEntity(client_id=""),
        QuotaEntity(topic="shop/orders"),
        QuotaEntity(namespace="shop"),
        QuotaEntity(),
    ],
)
def test_a_quota_comes_back_as_it_was(entity: QuotaEntity) -> None:
    for quota in (
        Quota(name="a", entity=entity, produce_bytes_per_second=1, is_per_broker=True),
        Quota(name="a", entity=entity, fetch_bytes_per_second=0, request_percent=9),
    ):
        message = cluster_pb2.Quota.FromString(quota_to_wire(quota).SerializeToString())
        assert quota_from_wire(message) == quota


def test_a_bucket_comes_back_unless_a_later_release_counts_it() -> None:
    for kind in QuotaKind:
        bucket = Bucket("q", kind, principal="p", client_id="c")
        assert bucket_from_wire(bucket_to_wire(bucket)) == bucket
    later = cluster_pb2.QuotaBucket(quota="q", kind=99)  # type: ignore[arg-type]
    assert bucket_from_wire(later) is None
