"""The topics of a listener's namespace that this broker knows, by what its clients call them."""

from collections.abc import Callable, Iterable, Iterator

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.wire.errors import Code, code_of
from millrace.broker.rpc.resources import topic_resource
from millrace.core.errors import AccessUndecidedError, InvalidTopicError
from millrace.core.guard.access import Operation, Resource, ResourceKind
from millrace.core.ids import TopicId
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Topic
from millrace.core.topics import TopicName


class KnownTopics:
    """Looks topics up, by name or by id.

    Args:
        names: of the listener.
        image: returns the latest metadata; what this broker leads and follows may be behind.
    """

    def __init__(self, names: Names, image: Callable[[], MetadataImage]) -> None:
        self._names = names
        self._namespace = names.namespace
        self._image = image

    def find(self, called: str | TopicId) -> Topic | None:
        """Return a topic; None: there is none, or it is in another namespace (K7)."""
        image = self._image()
        if isinstance(called, str):
            return image.topics.get(TopicName(self._namespace, called))
        topic = image.topics_by_id.get(called)
        return topic if topic is not None and topic.name.namespace == self._namespace else None

    def all(self) -> Iterator[Topic]:
        """Yield all of them, in no order."""
        for topic in self._image().topics.values():
            if topic.name.namespace == self._namespace:
                yield topic

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

    async def found(
        self,
        called: Iterable[str | TopicId],
        operation: Operation,
        caller: GuardedCaller,
        *,
        undecided: int = Code.REQUEST_TIMED_OUT,
    ) -> dict[str | TopicId, Topic | int]:
        """Return each topic that a request names, or the code of its error.

        Who may not do something with a topic is not told whether there is one of that name.

        Args:
            called: names and ids.
            operation: what the request does.
            caller: who asks.
            undecided: the code where nobody knows now what the caller may do: clients try again.
        """
        answers: dict[str | TopicId, Topic | int] = {}
        resources: dict[str | TopicId, Resource] = {}
        for each in called:
            by_name = isinstance(each, str)
            unknown = Code.UNKNOWN_TOPIC_OR_PARTITION if by_name else Code.UNKNOWN_TOPIC_ID
            answers[each] = self.find(each) or unknown
            if (resource := self._named(each)) is not None:
                resources[each] = resource
        await caller.learn(operation, resources.values(), all_needed=True)
        for each, resource in resources.items():
            refusal = caller.refusal(operation, resource)
            if isinstance(refusal, AccessUndecidedError):
                answers[each] = undecided
            elif refusal is not None:
                answers[each] = code_of(refusal)
        return answers

    def _named(self, called: str | TopicId) -> Resource | None:
        """Return what rules are about; None: no topic can be called so, or an id of none."""
        try:
            if isinstance(called, str):
                self._names.topic(called)
            return self.resource(called)
        except InvalidTopicError:
            return None


def has_partition(topic: Topic, number: int) -> bool:
    """Return whether a topic has a partition."""
    return 0 <= number < len(topic.partitions)
