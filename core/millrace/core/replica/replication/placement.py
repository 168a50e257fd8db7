"""The log directory of each replica of a broker.

- A replica stays on the directory that has its log, even if that directory has failed. On another
  one it would begin empty: the next start would find two logs, and could not tell which counts.
- A new one goes to a working directory of its topic's media, the one with the fewest replicas. If
  none of that media works, it goes to the working one with the fewest: it is assigned to this
  broker, and works on another media as well.
- One that lies on another media than its topic asks for moves likewise (`replica_moves`).
- The oldest segments of a tiered one lie on a working HDD, the one with the fewest of them.
- A directory that fails takes its replicas offline, and those with segments there, and only those
  (P63).

A replica from before this start that is on no directory is *lost* if one of the broker's
directories is missing, or new: that one may have held it. An empty replica would hide the loss, so
it is refused, unless others have its records.

Pure. Source: KIP-112 and KIP-113 for directories that fail and are chosen.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from millrace.core.errors import CorruptLogError, LogDirFailedError
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, Topic
from millrace.core.replica.replication.replica_moves import ReplicaMoves


@dataclass(slots=True, eq=False, kw_only=True)
class ReplicaDirectory:
    """A log directory and the replicas on it."""

    media: Media
    replicas: set[TopicPartition]
    """Replicas that it has, or will get."""
    tiers: set[TopicPartition] = field(default_factory=set)
    """Replicas of which it has the oldest segments, and another directory the rest."""
    failure: LogDirFailedError | None = None

    def check(self) -> None:
        """Refuse a directory that has failed.

        Raises:
            LogDirFailedError: it has.
        """
        if self.failure is not None:
            raise LogDirFailedError(self.failure.message)


_D = TypeVar("_D", bound=ReplicaDirectory)


class Move(NamedTuple, Generic[_D]):
    """A replica that is to move from one directory to another."""

    topic_partition: TopicPartition
    source: _D
    target: _D


class ReplicaPlacement(Generic[_D]):
    """Knows where each replica is, and chooses where a new one goes.

    Args:
        broker: this broker's life.
        directories: all of them, with the replicas that were found there.
        moves_max: how many replicas move at the same time.
        misses_a_directory: whether a directory that this broker has used is missing, or one is new.

    Attributes:
        directories: all of them, in the order of the configuration.
        moves: the replicas on the wrong media, and which of them move.
    """

    def __init__(
        self,
        broker: BrokerLife,
        directories: Sequence[_D],
        *,
        moves_max: int,
        misses_a_directory: bool,
    ) -> None:
        self.directories = directories
        self.moves = ReplicaMoves(moves_max)
        self._broker = broker
        self._misses_a_directory = misses_a_directory

    # --- State -------------------------------------------------------------------------------

    def holder(self, topic_partition: TopicPartition) -> _D | None:
        """Return the directory that has a replica, or will get it."""
        for directory in self.directories:
            if topic_partition in directory.replicas:
                return directory
        return None

    def media_of(self, topic_partition: TopicPartition) -> Media:
        """Return the media of a replica of this broker."""
        holder = self.holder(topic_partition)
        assert holder is not None
        return holder.media

    @property
    def working(self) -> list[_D]:
        """The directories that have not failed."""
        return [directory for directory in self.directories if directory.failure is None]

    def working_media(self) -> tuple[Media, ...]:
        """Return the media of the working directories."""
        there = {directory.media for directory in self.working}
        return tuple(media for media in Media if media in there)

    def of_topics(
        self, topic_ids: Collection[TopicId]
    ) -> Iterator[tuple[_D, list[TopicPartition]]]:
        """Yield each working directory that has replicas of some topics, with these replicas."""
        for directory in self.working:
            found = sorted(
                replica for replica in directory.replicas if replica.topic_id in topic_ids
            )
            if found:
                yield directory, found

    def kept_of(self, topic_ids: Collection[TopicId]) -> set[TopicId]:
        """Return which of these topics have files in directories that have failed."""
        failed = [directory for directory in self.directories if directory.failure is not None]
        kept = {found.topic_id for at in failed for found in at.replicas | at.tiers}
        return kept.intersection(topic_ids)

    def unassigned(self, image: MetadataImage) -> list[TopicPartition]:
        """Return the replicas that the metadata does not assign to this broker.

        The cluster does not rely on them: other brokers have the partition, or it does not exist.
        """
        here = sorted(set().union(*(directory.replicas for directory in self.directories)))
        states = ((replica, image.partition(replica)) for replica in here)
        return [
            replica
            for replica, state in states
            if state is None or self._broker.broker_id not in state.replicas
        ]

    # --- Placing -----------------------------------------------------------------------------

    def place(self, topic_partition: TopicPartition, topic: Topic, *, is_first: bool) -> _D:
        """Return the directory in which to open or begin a replica's log.

        Args:
            topic_partition: the replica.
            topic: with its media, and the state of the partition.
            is_first: whether the first image after the start names it: then it may be an old one.

        Raises:
            CorruptLogError: the replica is lost. It is placed nevertheless.
            LogDirFailedError: its directory has failed.
        """
        chosen = self.holder(topic_partition)
        if chosen is None:
            chosen = _fewest(self.working or self.directories, topic.config.media)
            chosen.replicas.add(topic_partition)
            if is_first and self._is_lost(topic_partition, topic):
                raise CorruptLogError(
                    "it was on a log directory that is not here any more: it was left out of "
                    "log_dirs, or an empty one stands in its place. Bring the old one back, or "
                    "delete the topic",
                    topic_partition=topic_partition,
                )
        chosen.check()
        return chosen

    def _is_lost(self, topic_partition: TopicPartition, topic: Topic) -> bool:
        """Whether a replica without a directory may have been on a missing one.

        A broker that crashed between a topic's creation and that of its directory has not lost
        anything: nothing was acknowledged.
        """
        state = topic.partitions[topic_partition.partition]
        return self._misses_a_directory and (len(state.replicas) == 1 or self._broker in state.isr)

    def tier_for(self, topic_partition: TopicPartition) -> _D | None:
        """Return the directory that has, or gets, the oldest segments of a tiered replica.

        None: there is no working one for it, or the replica itself lies on an HDD.
        """
        home = self.holder(topic_partition)
        known = next(
            (directory for directory in self.directories if topic_partition in directory.tiers),
            None,
        )
        if known is not None:
            return known if known.failure is None else None
        if home is None or home.media is Media.HDD:
            return None
        fitting = [directory for directory in self.working if directory.media is Media.HDD]
        return min(fitting, key=lambda directory: len(directory.tiers), default=None)

    def on_tier(self, topic_partition: TopicPartition, directory: _D | None) -> None:
        """A replica has its oldest segments in another directory, or in its own from now on."""
        for known in self.directories:
            known.tiers.discard(topic_partition)
        if directory is not None:
            directory.tiers.add(topic_partition)

    def on_deleted(self, directory: _D, topic_partitions: Iterable[TopicPartition]) -> None:
        """Replicas' files are gone from a directory."""
        directory.replicas.difference_update(topic_partitions)

    # --- Failing -----------------------------------------------------------------------------

    def on_failed(self, directory: _D, error: LogDirFailedError) -> bool:
        """A directory has failed; return whether that is news."""
        if directory.failure is not None:
            return False
        directory.failure = error
        return True

    @property
    def has_failed(self) -> bool:
        """Whether no directory works any more."""
        return not self.working

    # --- Moving ------------------------------------------------------------------------------

    def on_opened(self, topic_partition: TopicPartition, wanted: TopicMedia) -> None:
        """A replica is open, or its topic asks for another media."""
        holder = self.holder(topic_partition)
        assert holder is not None
        self.moves.on_placed(topic_partition, holder.media, wanted)

    def begin_moves(self, now: MonotonicMs) -> list[Move[_D]]:
        """Return the replicas that begin to move now; `moves.on_ended` must follow for each."""
        begun = []
        for topic_partition in self.moves.begin(self.working_media(), now) if self.moves else ():
            source = self.holder(topic_partition)
            assert source is not None
            fitting = [
                directory
                for directory in self.working
                if self.is_to_move(topic_partition, directory)
            ]
            target = min(fitting, key=lambda directory: len(directory.replicas))
            begun.append(Move(topic_partition, source, target))
        return begun

    def is_to_move(self, topic_partition: TopicPartition, target: _D) -> bool:
        """Return whether a replica is still to move to a directory."""
        return target.failure is None and self.moves.is_wanted_on(topic_partition, target.media)

    def on_moved(self, move: Move[_D]) -> None:
        """A replica's log, all of it, is in the other directory from now on."""
        self.on_tier(move.topic_partition, None)
        move.source.replicas.discard(move.topic_partition)
        move.target.replicas.add(move.topic_partition)


def _fewest(directories: Sequence[_D], wanted: TopicMedia) -> _D:
    return min(
        directories,
        key=lambda directory: (not wanted.is_home_on(directory.media), len(directory.replicas)),
    )
