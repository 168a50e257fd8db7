"""DescribeClientQuotas, and DescribeAcls.

Quotas are Millrace's own, those for principals and client ids: one for a topic or a namespace is
nothing that Kafka has. A limit may be for the whole cluster here, and is shown as it is. They are
changed by `millrace quota`.

Rules are in a file, or in Kubernetes, and are no ACLs: they name prefixes in their own way, only
allow, and no operation includes another one. So Kafka's clients are told what a broker without an
authorizer tells them.

Source: KIP-546 for quotas, KIP-140 for ACLs; Kafka's `ClientQuotaMetadataManager`.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.admin import DescribeAclsResponse, DescribeClientQuotasResponse

from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.problems import told
from millrace.proto.v1 import cluster_pb2 as pb

_USER: Final = "user"
_CLIENT_ID: Final = "client-id"
_IP: Final = "ip"
_LIMITS: Final = (
    ("producer_byte_rate", "produce_bytes_per_second"),
    ("consumer_byte_rate", "fetch_bytes_per_second"),
    ("request_percentage", "request_percent"),
)


class _Match(IntEnum):
    """Kafka's numbers of how a filter chooses names."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaAndAclRequests:
    """Answers what clients ask of quotas and ACLs."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(range(2), self._describe_quotas),
            ApiKey.DESCRIBE_ACLS: Served(range(1, 4), self._describe_acls),
        }

    async def _describe_quotas(self, request: Request) -> Any:
        message = request.message
        try:
            _check_filter(message.components)
            call = pb.DescribeQuotasRequest(without_use=True)
            found = await self._parts.local.call("DescribeQuotas", call, request.caller)
        except MillraceError as error:
            return DescribeClientQuotasResponse(
                version=request.version,
                error_code=code_of(error),
                error_message=error.message,
                entries=None,
            )
        return DescribeClientQuotasResponse(
            version=request.version,
            error_code=NO_ERROR,
            error_message=None,
            entries=list(_entries(found.quotas, message)),
        )

    async def _describe_acls(self, request: Request) -> Any:
        return DescribeAclsResponse(
            version=request.version,
            error_code=Code.SECURITY_DISABLED,
            error_message=(
                "No Authorizer is configured for ACLs: who may do what is in the broker's rules, "
                "or in Kubernetes' roles"
            ),
            resources=[],
        )


def _check_filter(components: Sequence[Any]) -> None:
    """Check what quotas a client asks for.

    Raises:
        MalformedRequestError: Kafka knows no such filter.
    """
    types = [component.entity_type for component in components]
    if len(types) > len({*types}):
        raise MalformedRequestError("a type of entity is named twice: name it once")
    for component in components:
        if component.entity_type not in (_USER, _CLIENT_ID, _IP):
            raise MalformedRequestError(
                f"{told(component.entity_type)!r} is no type of entity that quotas are for: they "
                f"are for {_USER}, {_CLIENT_ID} and {_IP}"
            )
        if component.match_type not in [*_Match]:
            raise MalformedRequestError(f"there is no way to match {component.match_type}")
        if component.match_type == _Match.EXACT and component.match is None:
            raise MalformedRequestError("the name that has to be equal is missing")


def _entries(quotas: Sequence[pb.Quota], message: Any) -> Iterator[Any]:
    kind = DescribeClientQuotasResponse.EntryData
    for quota in quotas:
        # An empty name stands for each that has no quota of its own: Kafka's default.
        entity = {
            entity_type: getattr(quota.entity, field) or None
            for entity_type, field in ((_USER, "principal"), (_CLIENT_ID, "client_id"))
            if quota.entity.HasField(field)
        }
        if not entity or not _matches(entity, message):
            continue
        yield kind(
            entity=[
                kind.EntityData(entity_type=entity_type, entity_name=name)
                for entity_type, name in entity.items()
            ],
            values=[
                kind.ValueData(key=key, value=float(getattr(quota, field)))
                for key, field in _LIMITS
                if quota.HasField(field)
            ],
        )


def _matches(entity: Mapping[str, str | None], message: Any) -> bool:
    for component in message.components:
        if component.entity_type not in entity:
            return False
        name = entity[component.entity_type]
        if component.match_type == _Match.EXACT and name != component.match:
            return False
        if component.match_type == _Match.DEFAULT and name is not None:
            return False
    return not message.strict or len(entity) == len(message.components)
