"""The topics of a cluster, as a coordinator of groups sees them."""

from collections.abc import Collection, Mapping

from millrace.core.coordinator.groups.assignors import SubscribedTopic
from millrace.core.coordinator.groups.patterns import matching
from millrace.core.coordinator.groups.subscriptions import FoundTopic
from millrace.core.ids import TopicId


class Topics:
    """Topics of one partition each, by name."""

    def __init__(self, ids: Mapping[str, TopicId] | None = None) -> None:
        self._ids = ids or {}

    @property
    def version(self) -> object:
        return self

    def find(self, name: str) -> FoundTopic | None:
        topic_id = self._ids.get(name)
        return None if topic_id is None else FoundTopic(topic_id, SubscribedTopic(1))

    def matching(self, pattern: str) -> Collection[str]:
        return matching(pattern, list(self._ids))
