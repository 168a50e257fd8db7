"""Which partitions a consumer reads: those that its user names, or its group gives it.

Topics may be read as a whole, or by a pattern: then later partitions and topics are read, too, from
their beginning. The user is told of a topic that is gone, once.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from millrace.client import events
from millrace.client._cluster.arguments import LogEnd, checked_place, log_end, whole_number
from millrace.client._consumer.fetching import RESETS, Fetching
from millrace.client._consumer.handing_out import HandingOut
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.core.client.consumer.read_partition import Reset
from millrace.core.coordinator.groups import patterns
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    InvalidGroupError,
    InvalidRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.runtime import host

_log = Log(__name__)

Start = int | LogEnd


def reset_of(start: object) -> Reset | Offset:
    """Return a start as the fetcher takes it.

    Raises:
        InvalidRequestError: it is none.
    """
    if (end := log_end(start)) is not None:
        return RESETS[end]
    offset = whole_number(start)
    if offset is not None and offset >= 0:
        return Offset(offset)
    raise InvalidRequestError(
        f'{start!r} is no position: give an offset, "beginning" ("earliest") or "end" ("latest")'
    )


def check_list(topics: object) -> None:
    """Refuse a single name, which would be taken letter by letter."""
    if isinstance(topics, str):
        raise InvalidRequestError(f"{topics!r} is one topic: give a list, as [{topics!r}]")


@dataclass(frozen=True, slots=True)
class Begun:
    """A partition that a member begins to read.

    Attributes:
        topic: its name.
        position: that the group has committed; None: none.
        is_later: it appeared after the group had begun to read the topic: without a position it is
            read from its start.
    """

    topic: str
    position: Position | None = None
    is_later: bool = False


class Assignment:
    """What is read, with the names of its topics."""

    def __init__(self, fetching: Fetching, handing_out: HandingOut, config: ConsumerConfig) -> None:
        self._fetching = fetching
        self._handing_out = handing_out
        self._cluster = fetching.cluster
        self._counters = fetching.counters
        self._config = config
        self.is_of_group = False
        """The group says what is read."""
        self._whole_topics: list[str] = []
        """Topics that are read with all their partitions, also those that come; none of a group."""
        self._pattern = ""
        """Topics of a matching name are read when they come, without a group; empty: none."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.topics: dict[TopicPartition, str] = {}
        """Names of the topics of assigned partitions."""
        self.topic_ids: dict[str, TopicId] = {}
        """Ids of the topics that are read, by name: another topic may have a name by now."""
        self.gone_at = 0.0
        """When the last topic of a group's partition was found to be gone; 0: none that counts."""
        self._told_gone: set[TopicId] = set()
        """Topics of assigned partitions that are gone, as the user was told."""
        self._told_made_again: set[TopicId] = set()
        """Topics that were made again, as the user was told."""

    def named(self, place: PartitionName) -> TopicPartition:
        """Return an assigned partition.

        Raises:
            InvalidRequestError: it is not assigned.
        """
        topic, number = checked_place(place)
        # Not the cluster's ids: a topic that was deleted meanwhile is still assigned.
        topic_id = self.topic_ids.get(str(parse_topic_name(topic)))
        found = None if topic_id is None else TopicPartition(topic_id, number)
        if found is None or found not in self.topics:
            raise InvalidRequestError(f"partition {number} of {topic!r} is not assigned: assign it")
        return found

    def name_of(self, place: TopicPartition) -> PartitionName:
        """Return an assigned partition as its user names it."""
        return self.topics[place], place.partition

    # What the user names.

    async def assign(
        self,
        wanted: Iterable[PartitionName | str] | Mapping[PartitionName | str, Start],
        start: Start | None,
        ends: Mapping[PartitionName, int],
        found: Iterable[str] = (),
    ) -> None:
        """Read exactly these partitions, and those of the topics that were found by a pattern.

        What was found may be deleted since: it is left out.
        """
        check_list(wanted)
        places: dict[TopicPartition, str] = {}
        starts: dict[TopicPartition, Reset | Offset] = {}
        until: dict[TopicPartition, Offset] = {}
        whole_topics: list[str] = []
        limits = {
            (str(parse_topic_name(topic)), number): Offset(end)
            for (topic, number), end in zip(map(checked_place, ends), ends.values(), strict=True)
        }
        each_start: Mapping[PartitionName | str, Start] = (
            wanted if isinstance(wanted, Mapping) else {}
        )
        wanted = [item if isinstance(item, str) else checked_place(item) for item in wanted]
        named = set(wanted)
        wanted += [topic for topic in found if topic not in named]
        # A named partition takes precedence over its topic.
        wanted.sort(key=lambda item: not isinstance(item, str))
        topics = {item if isinstance(item, str) else item[0] for item in wanted}
        if topics:  # There may be new partitions since, or another topic of the name.
            await self._cluster.refresh(sorted(str(parse_topic_name(topic)) for topic in topics))
        for item in wanted:
            name, number = (item, None) if isinstance(item, str) else item
            try:
                info = await self._cluster.topic_with(name, number or 0)
            except UnknownTopicOrPartitionError:
                if item in named:
                    raise
                continue
            if number is None:
                whole_topics.append(info.name)
            to = each_start.get(item, start)
            for read in range(len(info.partitions)) if number is None else [number]:
                place = info.place(read)
                places[place] = info.name
                starts[place] = Reset.NONE if to is None else reset_of(to)
                if (info.name, read) in limits:
                    until[place] = limits.pop((info.name, read))
        if limits:
            topic, number = next(iter(limits))
            raise InvalidRequestError(
                f"there is an end for partition {number} of {topic!r}, which is not to be read"
            )
        self._handing_out.drop()
        self._pattern = ""
        self._whole_topics = whole_topics
        with self._fetching.lock:
            for gone in [at for at in self._fetching.fetcher.assigned if at not in places]:
                self._fetching.fetcher.unassign(gone)
            for place, topic in places.items():
                self._fetching.fetcher.assign(topic, place, starts[place], until.get(place))
        self.topics = places
        self._told_gone.clear()
        self._fetching.look_up_errors.clear()
        self.topic_ids = {topic: place.topic_id for place, topic in places.items()}
        self._fetching.tell_leaders()

    async def read_topics(self, topics: Iterable[str], pattern: str, start: Start | None) -> None:
        """Read all partitions of topics, and of those whose name matches, also later ones."""
        found: list[str] = []
        if pattern:
            try:
                patterns.check_pattern(pattern)
            except InvalidGroupError as error:
                raise InvalidRequestError(error.message) from error
            found = await self._matching_topics(pattern)
        await self.assign(topics, start, {}, found)
        self._pattern = pattern
        self._look_for_topics_later()

    async def _matching_topics(self, pattern: str) -> list[str]:
        response = await self._cluster.look_up(
            cluster_pb2.GetMetadataRequest(), wanted=partial(patterns.matching, pattern)
        )
        there = [topic for topic in response.topics if not (topic.internal or topic.error.code)]
        return patterns.matching(pattern, [str(parse_topic_name(topic.name)) for topic in there])

    def end_all(self) -> None:
        """Read nothing, also nothing that comes later."""
        self.end(list(self.topics))
        self.topic_ids.clear()
        self._whole_topics, self._pattern = [], ""
        self._cancel_timer()

    def _look_for_topics_later(self) -> None:
        self._cancel_timer()
        if self._pattern and not self._is_closed:
            fetching, wait_s = self._fetching, self._config.metadata_max_age_ms / 1000
            self._timer = fetching.loop.call_later(
                wait_s, fetching.tasks.spawn, self._look_for_topics
            )

    async def _look_for_topics(self) -> None:
        """Read topics that match the pattern and have come, from their beginning."""
        pattern = self._pattern
        with suppress(MillraceError):  # The next look may succeed.
            found = await self._matching_topics(pattern) if pattern else []
            if pattern == self._pattern:  # Else the user has made another choice.
                self._add_topics(found)
        self._look_for_topics_later()

    def _add_topics(self, names: Iterable[str]) -> None:
        for name in set(names).difference(self._whole_topics):
            info = self._cluster.metadata.topics.get(name)
            if info is not None:
                self.topic_ids[name] = info.topic_id
                self._whole_topics.append(name)
        self.on_looked_up()

    def on_looked_up(self) -> None:
        """Read new partitions of subscribed topics, from their beginning."""
        for topic in self._whole_topics:
            info = self._cluster.metadata.topics.get(topic)
            for partition in () if info is None else info.partitions:
                assert info is not None
                place = TopicPartition(info.topic_id, partition.partition)
                if place not in self.topics and info.topic_id == self.topic_ids.get(topic):
                    self.topics[place] = topic
                    with self._fetching.lock:
                        self._fetching.fetcher.assign(topic, place, Reset.EARLIEST, is_new=True)
        self._fetching.step()

    def close(self) -> None:
        """Look for no more topics."""
        self._is_closed = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # What the group says.

    def begin(self, places: Mapping[TopicPartition, Begun]) -> None:
        """Read these partitions, too."""
        for place, begun in places.items():
            assign = partial(self._fetching.fetcher.assign, begun.topic, place)
            start = begun.position
            with self._fetching.lock:
                if start is None:
                    reset = Reset.EARLIEST if begun.is_later else Reset.NONE
                    assign(reset, is_new=begun.is_later)
                else:
                    assign(Offset(start.offset), epoch=LeaderEpoch(start.leader_epoch))
            self.topics[place] = begun.topic
            self.topic_ids[begun.topic] = place.topic_id
        self._fetching.tell_leaders()

    def end(self, places: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them."""
        gone = set(places)
        self._handing_out.drop_rest_of(gone)
        self._handing_out.undecided -= gone
        with self._fetching.lock:
            for place in gone:
                self._fetching.fetcher.unassign(place)
        for place in gone:
            del self.topics[place]
            self._told_gone.discard(place.topic_id)
            self._told_made_again.discard(place.topic_id)
        self._fetching.step()

    def put_back(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        """Go back, and drop what was fetched; None: to the first record that was taken."""
        self._handing_out.drop()
        self._handing_out.undecided.clear()
        self._handing_out.staged.clear()
        with self._fetching.changing() as fetcher:
            for place, position in positions.items():
                to = fetcher.partition(place).first_taken
                if position is not None:
                    to = Offset(position.offset)
                if to is not None and not fetcher.untold.is_gone(place):
                    fetcher.rewind(place, to)

    def is_undecided(self, places: Iterable[TopicPartition]) -> bool:
        """Whether records of these were handed out that no transaction has committed."""
        return self._handing_out.is_undecided(places)

    def known_position(self, place: TopicPartition) -> Position | None:
        """Return the position to commit: after all records that were handed out.

        But not beyond a record that `process` is at. None: it is not known yet, or the topic is
        gone.
        """
        offset = self._handing_out.undone_offset(place)
        if self.is_gone(place):
            return None
        with self._fetching.lock:
            if offset is None:
                offset = self._fetching.fetcher.partition(place).known_position
            if offset is None:
                return None
            return Position(offset, self._fetching.fetcher.partition(place).epoch_before(offset))

    def is_gone(self, place: TopicPartition) -> bool:
        """Whether the topic of a partition is gone, as far as this consumer has heard."""
        with self._fetching.lock:
            return self._fetching.fetcher.untold.is_gone(place)

    def wake(self) -> None:
        """Let a poll that waits look again."""
        self._fetching.tell_news()

    # Topics that are gone.

    def leave_gone(self) -> None:
        """Tell of topics that are gone, and read them no more.

        A group takes their partitions away itself.

        Raises:
            UnknownTopicOrPartitionError: nothing else is read.
        """
        if not self._fetching.fetcher.untold.has_gone:
            return
        with self._fetching.lock:
            untold, read = self._fetching.fetcher.untold, self._fetching.fetcher.assigned
            if self._handing_out.has_rest_of(list(filter(untold.is_gone, read))):
                return  # These records come first.
            gone = untold.take_gone()
            is_all = all(map(untold.is_gone, read))
        names = {place.topic_id: self.topics[place] for place in gone}
        errors = {place.topic_id: error for place, error in gone.items()}
        for topic_id, topic in names.items():
            self.tell_gone(topic, topic_id, gone, errors[topic_id].message)
        if self.is_of_group:
            self.gone_at = host.monotonic_s()
            return
        if is_all and not self._pattern:
            place, error = next(iter(gone.items()))
            about_new = self._about_new_topic(self.topics[place], place.topic_id)
            raise UnknownTopicOrPartitionError(error.message + about_new)
        with self._fetching.changing() as fetcher:
            for place in gone:
                fetcher.unassign(place)
        for place in gone:
            del self.topics[place]
        for topic_id, topic in names.items():
            if self.topic_ids.get(topic) == topic_id:  # Else another one has the name by now.
                del self.topic_ids[topic]
                self._whole_topics = [name for name in self._whole_topics if name != topic]

    def tell_gone(
        self, topic: str, topic_id: TopicId, places: Iterable[TopicPartition], error: str
    ) -> None:
        """Log once that a topic is gone whose partitions, among others, are read."""
        if topic_id not in self._told_gone:
            self._told_gone.add(topic_id)
            self._counters.jumps["topic_gone"] += 1
            count = sum(place.topic_id == topic_id for place in places)
            error += self._about_new_topic(topic, topic_id)
            events.READ_TOPIC_GONE.log(_log, topic=topic, partitions=count, error=error)

    def tell_made_again(self, topic: str, topic_id: TopicId) -> None:
        """Log once that the group's positions are of a deleted topic of this name."""
        if topic_id not in self._told_made_again:
            self._told_made_again.add(topic_id)
            self._counters.jumps["topic_made_again"] += 1
            events.READ_TOPIC_MADE_AGAIN.log(_log, topic=topic, group=self._config.group)

    def _about_new_topic(self, topic: str, topic_id: TopicId) -> str:
        """Return what becomes of a topic that has the name of one that is gone, if there is one."""
        info = self._cluster.metadata.topics.get(topic)
        if info is None or info.topic_id == topic_id:
            return ""
        if self.is_of_group:
            return ": the group reads the new one, in which it has no position yet"
        if self._pattern and patterns.matching(self._pattern, [topic]):
            return ": the new one is read from its beginning"
        return ": assign the new one to read it"
