"""Topics that a caller may neither see nor read: it is not told that they belong to a group."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from millrace.broker.guard.callers import GuardedCaller
from millrace.core.guard.access import Operation, Resource, ResourceKind, named
from millrace.core.ids import TopicId, TopicPartition


class Hidden(NamedTuple):
    """Topics that are left out of a group's description.

    Attributes:
        topic_ids: of those that have partitions in it.
        names: full names, of those that members subscribe to as well.
    """

    topic_ids: Collection[TopicId] = frozenset()
    names: Collection[str] = frozenset()


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
    names = _named(partitions, name_of)
    return {names[name] for name in await hidden_names(caller, names)}


async def hidden_in_group(
    caller: GuardedCaller,
    partitions: Iterable[TopicPartition],
    subscribed: Iterable[str],
    name_of: Callable[[TopicId], str],
) -> Hidden:
    """Return the topics of a group that the caller may neither see nor read.

    Args:
        caller: who is told.
        partitions: that members have, or will have.
        subscribed: full names that members subscribe to, of topics that are there or not.
        name_of: returns the name of a topic; empty: it is not there.
    """
    if caller.access is None:
        return Hidden()
    names = _named(partitions, name_of)
    hidden = await hidden_names(caller, {*names, *subscribed})
    return Hidden({names[name] for name in hidden if name in names}, hidden)


def _named(
    partitions: Iterable[TopicPartition], name_of: Callable[[TopicId], str]
) -> dict[str, TopicId]:
    return {
        name: topic_id
        for topic_id in {topic_id for topic_id, _ in partitions}
        if (name := name_of(topic_id))
    }
