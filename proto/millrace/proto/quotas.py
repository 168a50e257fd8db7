"""Quotas on the wire."""

from collections.abc import Mapping
from typing import Final

from millrace.core.quotas.quota import Bucket, Quota, QuotaEntity, QuotaKind
from millrace.proto.v1 import cluster_pb2 as pb

_TO_WIRE: Final = {
    QuotaKind.PRODUCE: pb.QUOTA_KIND_PRODUCE,
    QuotaKind.FETCH: pb.QUOTA_KIND_FETCH,
    QuotaKind.REQUEST: pb.QUOTA_KIND_REQUEST,
}
_FROM_WIRE: Final[Mapping[int, QuotaKind]] = {number: kind for kind, number in _TO_WIRE.items()}


def quota_to_wire(quota: Quota) -> pb.Quota:
    """Return the message of a quota."""
    entity = quota.entity
    return pb.Quota(
        name=quota.name,
        entity=pb.QuotaEntity(
            principal=entity.principal,
            client_id=entity.client_id,
            topic=entity.topic,
            namespace=entity.namespace,
        ),
        produce_bytes_per_second=quota.produce_bytes_per_second,
        fetch_bytes_per_second=quota.fetch_bytes_per_second,
        per_broker=quota.is_per_broker,
        request_percent=quota.request_percent,
    )


def quota_from_wire(message: pb.Quota) -> Quota:
    """Return the quota of a message; it may break every rule (`checked`)."""
    entity = message.entity
    return Quota(
        name=message.name,
        entity=QuotaEntity(
            principal=entity.principal if entity.HasField("principal") else None,
            client_id=entity.client_id if entity.HasField("client_id") else None,
            topic=entity.topic if entity.HasField("topic") else None,
            namespace=entity.namespace if entity.HasField("namespace") else None,
        ),
        produce_bytes_per_second=message.produce_bytes_per_second
        if message.HasField("produce_bytes_per_second")
        else None,
        fetch_bytes_per_second=message.fetch_bytes_per_second
        if message.HasField("fetch_bytes_per_second")
        else None,
        request_percent=message.request_percent if message.HasField("request_percent") else None,
        is_per_broker=message.per_broker,
    )


def bucket_to_wire(bucket: Bucket) -> pb.QuotaBucket:
    """Return the message of a bucket."""
    return pb.QuotaBucket(
        quota=bucket.quota,
        kind=_TO_WIRE[bucket.kind],
        principal=bucket.principal,
        client_id=bucket.client_id,
        topic=bucket.topic,
        namespace=bucket.namespace,
    )


def bucket_from_wire(message: pb.QuotaBucket) -> Bucket | None:
    """Return the bucket of a message; None: it is of a kind that only a later release knows."""
    kind = _FROM_WIRE.get(message.kind)
    if kind is None:
        return None
    return Bucket(
        message.quota,
        kind,
        principal=message.principal,
        client_id=message.client_id,
        topic=message.topic,
        namespace=message.namespace,
    )
