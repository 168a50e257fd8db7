"""What the members of a group subscribe to: topics that exist, come later, or were left.

A group remembers with how many partitions each topic began, and the names and patterns for whose
topics it waits, so that the partitions of a later topic are read from their first record."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from millrace.core.coordinator.groups.assignors import SubscribedTopic
from millrace.core.coordinator.groups.group import (
    Epochs,
    Group,
    LeftTopic,
)
from millrace.core.ids import TopicId, WallMs

PATTERNS_MAX: Final = 16
"""Most regular expressions of one group: each is looked up at each change of topics. The group
remembers as many again of members that have left."""

_NAMES_LENGTH_MAX: Final = 64 << 10
"""Most characters of subscribed names in a group's record, and as many of names that were left.
Beyond that every new topic counts as later: reading too much of it is better than too little."""

_ANY_NAME: Final = ".*"

Subscribed: TypeAlias = tuple[tuple[str, ...], str]
"""The names and the pattern that a member subscribed to."""


class FoundTopic(NamedTuple):
    """A topic that exists."""

    topic_id: TopicId
    topic: SubscribedTopic


class TopicsView(Protocol):
    """The topics of the cluster, as the metadata has them."""

    @property
    def version(self) -> object:
        """Another object whenever a topic may have changed."""
        ...

    def find(self, name: str) -> FoundTopic | None:
        """Return a topic by its name; None: there is none."""
        ...

    def matching(self, pattern: str) -> Collection[str]:
        """Return the names of users' topics that a regular expression matches as a whole."""
        ...


def subscribed(
    group: Group, topics: TopicsView
) -> tuple[Mapping[Subscribed, frozenset[TopicId]], Mapping[str, FoundTopic]]:
    """Return the topics of each subscription that exist, and all of these by name.

    Members of a group have few different subscriptions, and each may be to all topics: so its
    members share one set.
    """
    matched = {pattern: topics.matching(pattern) for pattern in patterns_of(group)}
    names = {
        (listed, pattern): {*listed, *matched.get(pattern, ())}
        for listed, pattern in {
            (member.topics, member.pattern) for member in group.members.values()
        }
    }
    every = set().union(*names.values())
    found = {name: topic for name in every if (topic := topics.find(name)) is not None}
    ids = {
        subscribed: frozenset(found[name].topic_id for name in some if name in found)
        for subscribed, some in names.items()
    }
    return ids, found


def later(
    before: Epochs, found: Mapping[str, FoundTopic], topics: TopicsView
) -> tuple[tuple[TopicId, int], ...]:
    """Return the first later partition of each topic that has some.

    Args:
        before: of the last computation.
        found: the topics that are read now, by name.
        topics: of the cluster.
    """
    known = _begun_with(before)
    new = {name for name, topic in found.items() if topic.topic_id not in known}
    # All partitions of a new topic are later if a subscription has waited for the topic.
    names = {*before.names, *dict(before.left_names)}
    patterns = {*before.patterns, *dict(before.left_patterns)} if new else ()
    awaited = new & names.union(*map(topics.matching, patterns))
    firsts = {}
    for name, (topic_id, topic) in found.items():
        begun_with = known.get(topic_id, 0 if name in awaited else None)
        if begun_with is not None and begun_with < topic.partitions:
            firsts[topic_id] = begun_with
    return tuple(sorted(firsts.items()))


def _begun_with(epochs: Epochs) -> dict[TopicId, int | None]:
    """Return how many partitions each topic had when the group began to read it.

    None: the group has forgotten its positions there.
    """
    left = {topic_id: topic.begun_with for topic_id, topic in epochs.left}
    return {**left, **dict(epochs.topics), **dict(epochs.later)}


def left_topics(
    before: Epochs, read: Collection[TopicId], now: WallMs
) -> tuple[tuple[TopicId, LeftTopic], ...]:
    """Return the topics that the group has read before and does not read now."""
    left = {
        topic_id: LeftTopic(begun_with, now) for topic_id, begun_with in _begun_with(before).items()
    } | dict(before.left)
    return tuple(sorted(entry for entry in left.items() if entry[0] not in read))


_Times: TypeAlias = tuple[tuple[str, WallMs], ...]
"""Texts, and when the last member left each; sorted."""


def left_subscriptions(
    before: Epochs, names: Iterable[str], patterns: Iterable[str], now: WallMs
) -> tuple[_Times, _Times]:
    """Return the names and the patterns to which members subscribed before, and none does now."""
    left_names = _left_texts(before.names, before.left_names, names, now)
    left_patterns = _left_texts(before.patterns, before.left_patterns, patterns, now)
    if sum(len(name) for name, _ in left_names) > _NAMES_LENGTH_MAX:
        return (), ((_ANY_NAME, now),)
    if len(left_patterns) > PATTERNS_MAX:
        return left_names, ((_ANY_NAME, now),)
    return left_names, left_patterns


def _left_texts(before: Iterable[str], left: _Times, present: Iterable[str], now: WallMs) -> _Times:
    every = dict.fromkeys(before, now) | dict(left)
    gone = every.keys() - set(present)
    return tuple(sorted((pattern, every[pattern]) for pattern in gone))


def kept_subscriptions(group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and the patterns of all members, for the record of the group."""
    names = sorted({name for member in group.members.values() for name in member.topics})
    patterns = sorted(patterns_of(group))
    if sum(map(len, names)) > _NAMES_LENGTH_MAX:
        return (), (*patterns, _ANY_NAME)
    return tuple(names), tuple(patterns)


def patterns_of(group: Group) -> set[str]:
    return {member.pattern for member in group.members.values() if member.pattern}
