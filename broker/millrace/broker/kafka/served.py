"""The modules of requests: each serves a part of the protocol."""

from collections.abc import Sequence

from millrace.broker.kafka.administration.configs import ConfigRequests
from millrace.broker.kafka.administration.quotas_and_acls import QuotaAndAclRequests
from millrace.broker.kafka.administration.replicas import ReplicaRequests
from millrace.broker.kafka.administration.topics import TopicRequests
from millrace.broker.kafka.api_versions import ApiVersionsRequests
from millrace.broker.kafka.authentication import AuthenticationRequests
from millrace.broker.kafka.coordinators.classic_groups import GroupRequests
from millrace.broker.kafka.coordinators.consumer_groups import ConsumerGroupRequests
from millrace.broker.kafka.coordinators.group_administration import GroupAdministrationRequests
from millrace.broker.kafka.coordinators.positions import PositionRequests
from millrace.broker.kafka.coordinators.transactions import TransactionRequests
from millrace.broker.kafka.metadata import MetadataRequests
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.records.fetch import fetch_requests
from millrace.broker.kafka.records.offsets import OffsetRequests
from millrace.broker.kafka.records.produce import ProduceRequests
from millrace.broker.kafka.requests import RequestModule, RequestTable


def request_table(parts: KafkaParts) -> RequestTable:
    """Return all that a listener serves."""
    versions = ApiVersionsRequests()
    table = RequestTable([versions, *_modules(parts)])
    versions.table = table
    return table


def _modules(parts: KafkaParts) -> Sequence[RequestModule]:
    return [
        AuthenticationRequests(parts),
        MetadataRequests(parts),
        ProduceRequests(parts),
        TopicRequests(parts),
        ConfigRequests(parts),
        ReplicaRequests(parts),
        QuotaAndAclRequests(parts),
        fetch_requests(parts),
        OffsetRequests(parts),
        GroupRequests(parts),
        GroupAdministrationRequests(parts),
        PositionRequests(parts),
        ConsumerGroupRequests(parts),
        TransactionRequests(parts),
    ]
