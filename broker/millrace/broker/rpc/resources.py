"""The resources that requests name: topics by name and id, groups and transactional ids by name."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millrace.broker.guard.demands import ById
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.guard.access import Resource, ResourceKind, named
from millrace.core.ids import TOPIC_ID_BYTES, TopicId
from millrace.core.metadata.image import MetadataImage
from millrace.core.topics import TopicName


def topic_resource(name: TopicName) -> Resource:
    """Return a topic as a resource."""
    return Resource(ResourceKind.TOPICS, name.namespace, name.name)


class TopicResources:
    """Finds the topics that requests name.

    Args:
        image: returns the metadata; None: they are not known yet.
    """

    def __init__(self, image: Callable[[], MetadataImage | None]) -> None:
        self._image = image

    def of(self, topic_id: TopicId) -> Resource | None:
        """Return a topic by its id; None: there is none, or it is deleted."""
        image = self._image()
        topic = None if image is None else image.topics_by_id.get(topic_id)
        return None if topic is None else topic_resource(topic.name)

    def of_partitions(self, entries: Iterable[Any]) -> Iterator[ById | None]:
        """Yield the topics of entries that have a `topic_partition`; a deleted one may be back."""
        for entry in entries:
            yield self._with_deleted(TopicId(entry.topic_partition.topic_id))

    def of_refs(self, entries: Iterable[Any]) -> Iterator[Resource | ById | None]:
        """Yield the topics of entries with a name, an id, or both: then both must be allowed.

        The controller, which answers, may know more topics than this broker. It compares a name
        with the id. So an id that this broker does not know is passed on only with a name that is
        allowed.

        Raises:
            UnknownTopicOrPartitionError: an entry has nothing but such an id.
        """
        for entry in entries:
            if entry.name:
                yield named(ResourceKind.TOPICS, entry.name)
            if len(entry.topic_id) == TOPIC_ID_BYTES:
                found = self._with_deleted(TopicId(entry.topic_id))
                if found is None and not entry.name:
                    raise UnknownTopicOrPartitionError(
                        f"this broker knows no topic with id {entry.topic_id.hex()}: name it, too"
                    )
                yield found

    def _with_deleted(self, topic_id: TopicId) -> ById | None:
        image = self._image()
        deleted = None if image is None else image.deleted_topic(topic_id)
        found = self.of(topic_id) if deleted is None else topic_resource(deleted.topic.name)
        return None if found is None else ById(found)


def group(request: Any) -> Iterable[Resource]:
    """Return the group of a request that has one."""
    return (named(ResourceKind.GROUPS, request.group),)


def reader(request: Any) -> Iterable[Resource]:
    """Return the group, or another reader, whose positions a request is about."""
    return (named(ResourceKind.GROUPS, request.name),)


def transaction(request: Any) -> Iterable[Resource]:
    """Return the transactional id, or id of an application, of a request, if it has one."""
    name = request.transactional_id
    return (named(ResourceKind.TRANSACTIONS, name),) if name else ()
