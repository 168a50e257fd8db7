"""The topics of a listener's namespace that this broker knows, by what its clients call them."""

from collections.abc import Callable

from millrace.broker.kafka.names import Names
from millrace.broker.rpc.resources import topic_resource
from millrace.core.guard.access import Resource, ResourceKind
from millrace.core.ids import TopicId
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Topic
from millrace.core.topics import TopicName


class KnownTopics:
    """Looks topics up, by name or by id.

    Args:
        names: of the listener.
        image: returns the metadata; None: they are not known yet.
    """

    def __init__(self, names: Names, image: Callable[[], MetadataImage | None]) -> None:
        self._namespace = names.namespace
        self._image = image

    def find(self, called: str | TopicId) -> Topic | None:
        """Return a topic; None: there is none, or it is in another namespace (K7)."""
        image = self._image()
        if image is None:
            return None
        if isinstance(called, str):
            return image.topics.get(TopicName(self._namespace, called))
        topic = image.topics_by_id.get(called)
        return topic if topic is not None and topic.name.namespace == self._namespace else None

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return what clients call a topic; None: they do not know it."""
        topic = self.find(topic_id)
        return None if topic is None else topic.name.name

    def resource(self, called: str | TopicId) -> Resource | None:
        """Return what rules are about; None: an id of no topic."""
        if isinstance(called, str):  # There are rules about it also before there is a topic.
            return Resource(ResourceKind.TOPICS, self._namespace, called)
        topic = self.find(called)
        return None if topic is None else topic_resource(topic.name)
