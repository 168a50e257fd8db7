"""Assignors: which member of a group should own which partition.

An assignor is a pure function of the members, the topics, and the assignment before. It gives each
partition of each topic to exactly one member that subscribed to the topic, if there is one.

`range` gives each member neighbouring partitions of each topic, and all topics with the same
members and number of partitions are divided alike: partition 3 of one topic has the same owner as
partition 3 of the other, so that they can be joined.

`uniform` gives each member the same number of partitions, plus or minus one, if all members
subscribed to the same topics. It is sticky: of all such assignments it chooses one that moves few
partitions. Where it has a choice, a partition goes to a member in a zone with a replica. If
subscriptions differ, it moves partitions from members with more to members with fewer as long as
that makes loads more equal.

Source: Kafka's RangeAssignor and UniformAssignor (KIP-848); zones as in KIP-881.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.core.ids import TopicId, TopicPartition

Assignment: TypeAlias = dict[str, frozenset[TopicPartition]]
"""The partitions of each member, by its id."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it.

    Attributes:
        topics: the topics that it subscribed to, of those that exist. Members with the same
            subscription share one set: assignors look at each set once.
        zone: where it runs; empty: it did not say.
        instance_id: the name that a static member keeps over restarts; empty: it is dynamic.
    """

    topics: frozenset[TopicId]
    zone: str = ""
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A topic as assignors see it.

    Attributes:
        partitions: how many it has.
        zones: the zones with a replica, by partition; empty: nothing is known of zones.
    """

    partitions: int
    zones: Sequence[frozenset[str]] = ()

    def is_near(self, partition: int, zone: str) -> bool:
        """Whether a replica of a partition is in a zone."""
        return bool(zone) and partition < len(self.zones) and zone in self.zones[partition]


Members: TypeAlias = Mapping[str, Subscriber]
Topics: TypeAlias = Mapping[TopicId, SubscribedTopic]


def assign_range(members: Members, topics: Topics, before: Assignment) -> Assignment:
    """Give each member neighbouring partitions of each topic: Kafka's `range`."""
    del before  # The order of the members alone decides.
    owned: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    # A static member keeps its place when it returns with another member id.
    in_order = sorted(members, key=lambda member: (members[member].instance_id or member, member))
    for subscriptions, alike in _by_subscriptions(members, topics).items():
        subscribed = [member for member in in_order if members[member].topics in subscriptions]
        for topic_id in alike:
            count = topics[topic_id].partitions
            for partition in range(count):
                # The member whose share, from `index * count / len` on, has this partition.
                index = ((partition + 1) * len(subscribed) - 1) // count
                owned[subscribed[index]].add(TopicPartition(topic_id, partition))
    return {member: frozenset(owned[member]) for member in members}


def assign_uniform(members: Members, topics: Topics, before: Assignment) -> Assignment:
    """Divide all partitions equally, and move few: Kafka's `uniform`."""
    owned: dict[str, list[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    for member, subscriber in members.items():
        # A partition of two members: the log ended in the middle of a target.
        owned[member] = [
            partition
            for partition in _kept(subscriber, topics, before.get(member, ()))
            if partition not in taken
        ]
        taken.update(owned[member])
    subscriptions = {subscription.intersection(topics) for subscription in _subscriptions(members)}
    free = [
        TopicPartition(topic_id, partition)
        for topic_id in sorted(frozenset().union(*subscriptions))
        for partition in range(topics[topic_id].partitions)
        if TopicPartition(topic_id, partition) not in taken
    ]
    if len(subscriptions) > 1:
        _balance(members, topics, owned, free)
    elif subscriptions:
        _divide(members, topics, owned, free)
    return {member: frozenset(some) for member, some in owned.items()}


ASSIGNORS: Final[Mapping[str, Callable[[Members, Topics, Assignment], Assignment]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
"""By the name that members ask for."""


def _subscriptions(members: Members) -> set[frozenset[TopicId]]:
    """Return the different sets of topics that members subscribed to."""
    return {member.topics for member in members.values()}


def _by_subscriptions(
    members: Members, topics: Topics
) -> dict[frozenset[frozenset[TopicId]], list[TopicId]]:
    """Return the topics to which a member subscribed, by all subscriptions that have them."""
    having: defaultdict[TopicId, list[frozenset[TopicId]]] = defaultdict(list)
    for subscription in _subscriptions(members):
        for topic_id in subscription.intersection(topics):
            having[topic_id].append(subscription)
    alike: defaultdict[frozenset[frozenset[TopicId]], list[TopicId]] = defaultdict(list)
    for topic_id, subscriptions in having.items():
        alike[frozenset(subscriptions)].append(topic_id)
    return alike


def _kept(
    member: Subscriber, topics: Topics, before: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Return what a member had and may keep, in order."""
    return sorted(
        partition
        for partition in before
        if partition.topic_id in member.topics
        and partition.topic_id in topics
        and partition.partition < topics[partition.topic_id].partitions
    )


def _divide(
    members: Members,
    topics: Topics,
    owned: Mapping[str, list[TopicPartition]],
    free: list[TopicPartition],
) -> None:
    """Give all members as many partitions, plus or minus one; all subscribed to the same topics."""
    total = len(free) + sum(map(len, owned.values()))
    least, larger = divmod(total, len(members))
    # Those that have most keep one more than the others.
    by_load = sorted(members, key=lambda member: (-len(owned[member]), member))
    room: dict[str, int] = {}
    for index, member in enumerate(by_load):
        share = least + (index < larger)
        some = owned[member]
        if len(some) > share:
            # It gives up first what no replica in its zone has.
            zone = members[member].zone
            some.sort(
                key=lambda partition: (
                    not topics[partition.topic_id].is_near(partition.partition, zone)
                )
            )
            free += some[share:]
            del some[share:]
        room[member] = share - len(some)
    far = _give_near(members, topics, owned, free, room)
    with_room = [member for member in by_load for _ in range(room[member])]
    for member, partition in zip(with_room, far, strict=True):
        owned[member].append(partition)


def _give_near(
    members: Members,
    topics: Topics,
    owned: Mapping[str, list[TopicPartition]],
    free: Sequence[TopicPartition],
    room: dict[str, int],
) -> list[TopicPartition]:
    """Give partitions to members with room in a zone with a replica; return the others."""
    in_zone: defaultdict[str, list[str]] = defaultdict(list)
    for member, description in members.items():
        if description.zone and room[member]:
            in_zone[description.zone].append(member)
    far: list[TopicPartition] = []
    for partition in sorted(free):
        zones = topics[partition.topic_id].zones
        near = zones[partition.partition] if partition.partition < len(zones) else frozenset()
        # The zone with the most members that have room.
        zone = max(
            sorted(near & in_zone.keys()), key=lambda member: len(in_zone[member]), default=None
        )
        if zone is None:
            far.append(partition)
            continue
        member = in_zone[zone][-1]
        owned[member].append(partition)
        room[member] -= 1
        if not room[member]:
            in_zone[zone].pop()
            if not in_zone[zone]:
                del in_zone[zone]
    return far


def _balance(
    members: Members,
    topics: Topics,
    owned: Mapping[str, list[TopicPartition]],
    free: Sequence[TopicPartition],
) -> None:
    """Give free partitions to the least loaded subscribers, then move some from full to empty."""
    least = _LeastLoaded(members, topics, owned)
    # Topics with few subscribers first: they have the least choice.
    for partition in sorted(
        free, key=lambda partition: (least.subscribers[partition.topic_id], partition)
    ):
        member = least.find(partition)
        if member is not None:
            owned[member].append(partition)
            least.on_changed(member)
    has_moved = True
    while has_moved:  # Each move brings two loads closer, so there is an end.
        has_moved = False
        for member in sorted(members, key=lambda member: (-len(owned[member]), member)):
            some = owned[member]
            for partition in some[::-1]:
                other = least.find(partition)
                if other is not None and len(owned[other]) + 1 < len(some):
                    some.remove(partition)
                    owned[other].append(partition)
                    least.on_changed(member)
                    least.on_changed(other)
                    has_moved = True


class _LeastLoaded:
    """Finds the subscriber of a topic that owns least, without a look at all of them.

    Each subscription has a heap of loads for each zone. A load that has changed since is skipped.

    Attributes:
        subscribers: how many members subscribed to each topic.
    """

    def __init__(
        self, members: Members, topics: Topics, owned: Mapping[str, list[TopicPartition]]
    ) -> None:
        self._members, self._topics, self._owned = members, topics, owned
        self._heaps: dict[frozenset[TopicId], dict[str, list[tuple[int, str]]]] = {
            subscription: {} for subscription in _subscriptions(members)
        }
        self._having = {
            topic_id: subscriptions
            for subscriptions, alike in _by_subscriptions(members, topics).items()
            for topic_id in alike
        }
        sizes = Counter(member.topics for member in members.values())
        self.subscribers = {
            topic_id: sum(sizes[subscription] for subscription in subscriptions)
            for topic_id, subscriptions in self._having.items()
        }
        for member in members:
            self.on_changed(member)

    def on_changed(self, member: str) -> None:
        subscriber = self._members[member]
        heap = self._heaps[subscriber.topics].setdefault(subscriber.zone, [])
        heapq.heappush(heap, (len(self._owned[member]), member))

    def find(self, partition: TopicPartition) -> str | None:
        """Return the member, near a replica if possible; None: no member subscribed."""
        topic = self._topics[partition.topic_id]
        tops = []
        for subscription in self._having.get(partition.topic_id, ()):
            for zone, heap in self._heaps[subscription].items():
                while heap[0][0] != len(self._owned[heap[0][1]]):
                    heapq.heappop(heap)
                load, member = heap[0]
                tops.append((load, not topic.is_near(partition.partition, zone), member))
        return min(tops)[2] if tops else None
