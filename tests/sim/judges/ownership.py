"""The judge of a consumer group, with the knowledge of all its members.

What users rely on, whatever happens to members, coordinators and the network between them:

- A partition has one owner. When a member is given a partition, no other member with a living
  session still has it (P61). Records of it are handed out to its owner alone, and only while the
  owner's session lives.
- A new owner begins no later than where the group has handed out everything: nothing is left out,
  as long as members commit only what they have handed out (P62). Records may come twice.
- What is stored is done: a commit never includes records that a member is still working on (P62).
- It begins no earlier than where a commit was acknowledged: nothing has taken that back, neither an
  earlier owner nor an attempt that comes late (P58, P60, P62).
- A commit of a former owner is refused when it begins after the partition has another owner.
- In quiet the group reads on.

An owner's time with a partition is a *tenure*; they are counted for each partition.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tests.sim.clients.readers_and_writers import Site
from tests.sim.machines.clocks import MachineClock
from tests.sim.world import SECOND, Violation

from millrace.client import Record
from millrace.core.topics import PartitionName

GROUP: Final = "shared"


class Session(NamedTuple):
    """What a member knows of its session.

    Attributes:
        is_lost: it has heard that it is over.
        heard_at: when it asked what was answered last, by its clock in seconds.
        lasts_s: how long it lives from then on.
    """

    is_lost: bool
    heard_at: float
    lasts_s: float


class Life:
    """One consumer of the group, from its start to its end.

    Args:
        member: the name of the member.
        number: of its consumer.
        session: returns its session; None: it has none.
        clock: of its machine.

    Attributes:
        member: the name of the member.
        name: of the member, and the number of its consumer.
        tenures: of the partitions that it was given, the latest of each.
    """

    def __init__(
        self,
        member: str,
        number: int,
        session: Callable[[], Session | None],
        clock: MachineClock,
    ) -> None:
        self.member = member
        self.name = f"{member}.{number}"
        self.tenures: dict[PartitionName, int] = {}
        self._session = session
        self._clock = clock

    @property
    def may_read(self) -> bool:
        """Whether its session lives, by its own clock, and it knows of nothing else."""
        session = self._session()
        return session is not None and not session.is_lost and not self.is_silent

    @property
    def is_silent(self) -> bool:
        """Whether it has heard nothing of the group for a session."""
        session = self._session()
        if session is None:
            return True
        return self._clock.monotonic() / SECOND - session.heard_at > session.lasts_s


class Attempt(NamedTuple):
    """A commit that is under way, of one partition.

    Attributes:
        is_late: another member had the partition when it began.
    """

    place: PartitionName
    offset: int
    is_late: bool


class _Begin(NamedTuple):
    life: Life
    offset: int


class Ownership:
    """Judges one group from what its members are given, read and commit.

    Args:
        may_be_lost: whether stored positions may be lost, by an unclean election.
        may_have_two: whether two brokers have coordinated the group within a session: the one that
            was deposed may not know it, and keeps its members (P61).

    Attributes:
        sites: the topics that it reads, by name.
        owners: who was last given each partition, until it gave it up.
        next_offsets: up to where the group has handed out all records of each partition.
        moves: partitions that another member got than the one that had it before: when, and what.
        losses: members that were told of lost partitions, though they had heard of the group.
        silences: likewise, of members that had heard nothing for a session.
        orphaned_us: for how long a partition had no owner after its owner was gone, at the most.
    """

    def __init__(
        self,
        may_be_lost: Callable[[], bool],
        may_have_two: Callable[[], bool],
    ) -> None:
        self.sites: dict[str, Site] = {}
        self.owners: dict[PartitionName, Life] = {}
        self.next_offsets: dict[PartitionName, int] = {}
        self._done: dict[PartitionName, int] = {}  # Up to where members have worked on all records.
        self._may_be_lost = may_be_lost
        self._may_have_two = may_have_two
        self._tenures: dict[PartitionName, int] = {}
        self._committed: dict[PartitionName, int] = {}  # The largest offset that is acknowledged.
        self._begins: dict[PartitionName, _Begin] = {}  # Where commits were at the assignment.
        self._set_back: dict[PartitionName, None] = {}
        self.moves: list[tuple[int, str]] = []
        self.losses: list[str] = []
        self.silences: list[str] = []
        self._members: dict[PartitionName, str] = {}  # Who had it last.
        self.orphaned_us = 0
        self._orphans: dict[PartitionName, int] = {}  # Since when.

    # --- What members are told ---------------------------------------------------------------

    def on_assigned(self, life: Life, places: Iterable[PartitionName]) -> None:
        for place in places:
            before = self.owners.get(place)
            is_taken = before is not None and before is not life and before.may_read
            if is_taken and not life.may_read:
                continue  # It stood still meanwhile, and hears next that it has lost everything.
            if before is not None and is_taken and not self._may_have_two():
                raise Violation(f"{life.name} is given {place}, which {before.name} has (P61)")
            self.owners[place] = life
            now = self.sites[place[0]].world.now
            self.orphaned_us = max(self.orphaned_us, now - self._orphans.pop(place, now))
            self._tenures[place] = life.tenures[place] = self._tenures.get(place, 0) + 1
            self._begins[place] = _Begin(life, self.floor(place))
            last, self._members[place] = self._members.get(place, life.member), life.member
            if last != life.member:
                self.moves.append((now, f"{place} moved from {last} to {life.name}"))

    def on_given_up(self, life: Life, places: Iterable[PartitionName]) -> None:
        for place in places:
            if self.owners.get(place) is life:
                del self.owners[place]

    def on_lost(self, life: Life, places: list[PartitionName]) -> None:
        if life.is_silent:
            self.silences.append(f"{life.name} has lost {places}")
        elif not self._may_have_two():
            self.losses.append(f"{life.name} has lost {places}")
        self.on_given_up(life, places)

    def on_ended(self, life: Life) -> None:
        """A consumer is closed or dead: it has nothing any more."""
        places = [place for place, owner in self.owners.items() if owner is life]
        self._orphans.update({place: self.sites[place[0]].world.now for place in places})
        self.on_given_up(life, places)

    def on_set_back(self, places: Iterable[PartitionName]) -> None:
        """A member begins again, as records are gone: its positions go back."""
        self._set_back.update(dict.fromkeys(places))

    def on_read(self, life: Life, record: Record) -> None:
        place, offset = (record.topic, record.partition), record.offset
        if life.is_silent:
            raise Violation(f"{life.name} reads {offset} of {place} after its session (P61)")
        owner = self.owners.get(place)
        if owner is not life and not self._may_have_two():
            whose = "nobody" if owner is None else owner.name
            raise Violation(f"{life.name} reads {offset} of {place}, which {whose} owns (P61)")
        site = self.sites[record.topic]
        topic_partition = site.partitions[record.partition]
        if offset >= site.committed(topic_partition):
            raise Violation(f"{life.name} gets {offset} of {place}: it is not committed")
        at = self.next_offsets.get(place, 0)
        if offset > at and offset > site.kept_from(topic_partition) and not self._may_jump(place):
            raise Violation(f"{life.name} gets {offset} of {place}, and the group is at {at}")
        begin = self._begins.pop(place, None)
        if begin is not None and begin.life is life and offset < begin.offset:
            raise Violation(
                f"{life.name} gets {offset} of {place}, and {begin.offset} was committed before "
                "(P58, P60, P62)"
            )
        self.next_offsets[place] = max(at, offset + 1)

    def on_done(self, records: Iterable[Record]) -> None:
        """A member has worked on what a poll has handed out."""
        for record in records:
            place = (record.topic, record.partition)
            self._done[place] = max(self._done.get(place, 0), record.offset + 1)

    # --- Commits -----------------------------------------------------------------------------

    def attempts(self, life: Life, positions: Mapping[PartitionName, int]) -> list[Attempt]:
        """A member begins to commit."""
        return [
            Attempt(place, offset, life.tenures[place] < self._tenures[place])
            for place, offset in positions.items()
        ]

    def on_committed(self, life: Life, attempts: Iterable[Attempt]) -> None:
        """They are acknowledged."""
        for place, offset, is_late in attempts:
            if is_late:
                raise Violation(
                    f"{life.name} has committed {offset} of {place}, which others own (P62)"
                )
            self._committed[place] = max(self._committed.get(place, 0), offset)

    def floor(self, place: PartitionName) -> int:
        """The least offset that the stored position may have from now on."""
        if place in self._set_back or self._may_jump(place):
            return 0
        return self._committed.get(place, 0)

    def floors(self, topic: str) -> dict[PartitionName, int]:
        """These of all partitions of a topic."""
        count = len(self.sites[topic].partitions)
        return {(topic, number): self.floor((topic, number)) for number in range(count)}

    def on_observed(
        self, floors: Mapping[PartitionName, int], found: Mapping[PartitionName, int]
    ) -> None:
        """A client was told which positions are stored; it asked when these were the floors.

        A deposed coordinator that does not know it tells what was stored in its time, as Kafka's.
        """
        for place, floor in floors.items():
            at = found.get(place, 0)
            topic, number = place
            site = self.sites[topic]
            if at < floor and self.floor(place) and not self._may_have_two():
                raise Violation(
                    f"{at} of {place} is stored, and {floor} was committed before (P58, P60, P62)"
                )
            most = max(self._done.get(place, 0), site.kept_from(site.partitions[number]))
            if at > most and not self._may_jump(place):
                raise Violation(f"{at} of {place} is stored, and no more than {most} is done (P62)")

    def _may_jump(self, place: PartitionName) -> bool:
        topic, number = place
        site = self.sites[topic]
        return self._may_be_lost() or site.may_be_cut(site.partitions[number])
