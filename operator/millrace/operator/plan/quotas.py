"""What a Quota asks for, whether it may ask for that, and which Quotas ask for the same entity.

A Quota in the Cluster's own namespace may be for any entity. A Quota of another namespace may be
for topics of its namespace alone: client ids and users belong to the whole cluster, and a tenant
must not slow others.

An entity has one quota. If the cluster has one, that quota stays. It does not matter who made it.
If the cluster has none, the oldest Quota gets the entity.
"""

from collections.abc import Iterable, Mapping

from millrace.core.quotas.quota import EACH, Quota, QuotaEntity, checked
from millrace.core.topics import parse_topic_name
from millrace.operator.model import quota as model
from millrace.operator.model.quantities import amount
from millrace.operator.model.quota import Each, QuotaScope


def wanted(resource: model.Quota) -> Quota:
    """Return the quota that a resource asks for.

    Raises:
        InvalidQuotaError: it breaks a rule that the API server does not check.
        InvalidTopicError: likewise, of its topic.
    """
    spec = resource.spec
    return checked(
        Quota(
            name=f"{resource.namespace}/{resource.name}",
            entity=_entity(resource),
            produce_bytes_per_second=_rate(spec.produce_bytes_per_second),
            fetch_bytes_per_second=_rate(spec.fetch_bytes_per_second),
            request_percent=spec.request_percent,
            is_per_broker=spec.scope is QuotaScope.BROKER,
        )
    )


def may_be_for(entity: QuotaEntity, namespace: str, cluster_namespace: str) -> bool:
    """Whether a Quota of a namespace may be for this."""
    if namespace == cluster_namespace:
        return True
    if entity.topic:
        return parse_topic_name(entity.topic).namespace == namespace
    return entity.namespace == namespace


def conflicts(asked: Iterable[Quota], found: Mapping[str, Quota]) -> dict[str, str]:
    """Return the names of quotas that cannot be, each with the name of the one in its way.

    Args:
        asked: the oldest first.
        found: the quotas of the cluster.
    """
    holders = {quota.entity: name for name, quota in found.items()}
    in_the_way = {}
    for quota in asked:
        holder = holders.setdefault(quota.entity, quota.name)
        if holder != quota.name:
            in_the_way[quota.name] = holder
    return in_the_way


def _entity(resource: model.Quota) -> QuotaEntity:
    subject = resource.spec.subject

    def named(name: str | None, placeholder: Each) -> str | None:
        return EACH if placeholder in subject.each else name

    topic = named(subject.topic, Each.TOPIC)
    return QuotaEntity(
        principal=named(subject.user, Each.USER),
        client_id=named(subject.client_id, Each.CLIENT_ID),
        topic=str(parse_topic_name(topic, default=resource.namespace)) if topic else topic,
        namespace=named(subject.namespace, Each.NAMESPACE),
    )


def _rate(value: int | str | None) -> int | None:
    return None if value is None else int(amount(str(value).removesuffix("B")))
