"""Which quotas count for a client, and for a topic.

For each kind of limit one quota counts for a client, the first in Kafka's order that has such a
limit (`_caller_entities`, P73). A topic's own quota, or the one for each topic, counts beside it,
and so does that of its namespace: a request may be delayed by three, and waits for the longest
delay.

Source: Kafka's ClientQuotaManager (KIP-55).
"""

from collections.abc import Iterable

from millrace.core.quotas.quota import EACH, Bucket, Quota, QuotaEntity, QuotaKind
from millrace.core.topics import parse_topic_name

Found = tuple[Quota, Bucket]
"""A quota, and what it counts together."""


class QuotaTable:
    """The quotas of a cluster by whom they are for; immutable."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._quotas: dict[tuple[QuotaKind, QuotaEntity], Quota] = {
            (kind, quota.entity): quota
            for quota in quotas
            for kind in QuotaKind
            if quota.limit(kind) is not None
        }
        self.has_caller_quotas = False
        self.has_request_quotas = any(kind is QuotaKind.REQUEST for kind, _ in self._quotas)
        self.has_topic_quotas = False
        for _, entity in self._quotas:
            is_about_topics = entity.topic is not None or entity.namespace is not None
            self.has_topic_quotas |= is_about_topics
            self.has_caller_quotas |= not is_about_topics

    def of_caller(self, kind: QuotaKind, principal: str, client_id: str) -> Found | None:
        """Return the quota of a client; None: it has none."""
        if not self.has_caller_quotas:
            return None
        for entity in _caller_entities(principal, client_id):
            quota = self._quotas.get((kind, entity))
            if quota is not None:
                bucket = Bucket(
                    quota.name,
                    kind,
                    principal="" if entity.principal is None else principal,
                    client_id="" if entity.client_id is None else client_id,
                )
                return quota, bucket
        return None

    def of_topic(self, kind: QuotaKind, topic: str) -> list[Found]:
        """Return the quotas of a topic and of its namespace."""
        if not self.has_topic_quotas:
            return []
        found = []
        for name in (topic, EACH):
            quota = self._quotas.get((kind, QuotaEntity(topic=name)))
            if quota is not None:
                found.append((quota, Bucket(quota.name, kind, topic=topic)))
                break
        namespace = parse_topic_name(topic).namespace
        for name in (namespace, EACH):
            quota = self._quotas.get((kind, QuotaEntity(namespace=name)))
            if quota is not None:
                found.append((quota, Bucket(quota.name, kind, namespace=namespace)))
                break
        return found


def _caller_entities(principal: str, client_id: str) -> Iterable[QuotaEntity]:
    """Yield the entities that a client belongs to, the most specific first."""
    yield QuotaEntity(principal=principal, client_id=client_id)
    yield QuotaEntity(principal=principal, client_id=EACH)
    yield QuotaEntity(principal=principal)
    yield QuotaEntity(principal=EACH, client_id=client_id)
    yield QuotaEntity(principal=EACH, client_id=EACH)
    yield QuotaEntity(principal=EACH)
    yield QuotaEntity(client_id=client_id)
    yield QuotaEntity(client_id=EACH)
