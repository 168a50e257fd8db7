"""Topics that a caller may neither see nor read: it is not told that they belong to a group."""

from collections.abc import Callable, Iterable

from millrace.broker.guard.callers import GuardedCaller
from millrace.core.guard.access import Operation, Resource, ResourceKind, named
from millrace.core.ids import TopicId, TopicPartition


async def hidden_names(caller: GuardedCaller, topics: Iterable[str]) -> set[str]:
    """Return which of these topics, by their full names, the caller may neither see nor read."""
    if caller.access is None:
        return set()
    hidden: dict[str, Resource] = {
        topic: named(ResourceKind.TOPICS, topic) for topic in sorted({*topics})
    }
    for operation in (Operation.DESCRIBE, Operation.CONSUME):
        await caller.learn(operation, hidden.values())
        hidden = {
            topic: resource
            for topic, resource in hidden.items()
            if not caller.may(operation, resource)
        }
    return set(hidden)


async def hidden_topics(
    caller: GuardedCaller,
    partitions: Iterable[TopicPartition],
    name_of: Callable[[TopicId], str],
) -> set[TopicId]:
    """Return the topics of partitions that the caller may neither see nor read.

    Args:
        caller: who is told.
        partitions: of which it would be.
        name_of: returns the name of a topic; empty: it is not there.
    """
    if caller.access is None:
        return set()
    names = {
        name: topic_id
        for topic_id in {topic_id for topic_id, _ in partitions}
        if (name := name_of(topic_id))
    }
    return {names[name] for name in await hidden_names(caller, names)}
