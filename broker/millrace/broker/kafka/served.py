"""The modules of requests: each serves a part of the protocol."""

from collections.abc import Sequence

from millrace.broker.kafka.api_versions import ApiVersionsRequests
from millrace.broker.kafka.authentication import AuthenticationRequests
from millrace.broker.kafka.configs import ConfigRequests
from millrace.broker.kafka.consumer_groups import ConsumerGroupRequests
from millrace.broker.kafka.fetch import fetch_requests
from millrace.broker.kafka.group_administration import GroupAdministrationRequests
from millrace.broker.kafka.groups import GroupRequests
from millrace.broker.kafka.metadata import MetadataRequests
from millrace.broker.kafka.offsets import OffsetRequests
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.positions import PositionRequests
from millrace.broker.kafka.produce import ProduceRequests
from millrace.broker.kafka.quotas_and_acls import QuotaAndAclRequests
from millrace.broker.kafka.replicas import ReplicaRequests
from millrace.broker.kafka.requests import RequestModule, RequestTable
from millrace.broker.kafka.topics import TopicRequests
from millrace.broker.kafka.transactions import TransactionRequests


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
