"""A plan is worked through in waves, and nothing but the cluster remembers how far it is."""

from collections.abc import Iterable, Mapping, Sequence

from millrace.cli.moves.reassignment_queue import ReassignmentQueue
from millrace.client import PartitionDescription, TopicDescription
from millrace.core.errors import (
    InvalidReplicaAssignmentError,
    MillraceError,
    ReassignmentReason,
    ReassignmentRefusedError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from millrace.core.topics import PartitionName

BROKERS = (0, 1, 2)


def ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


class FakeCluster:
    """Topic `t` on broker 0, and so many reassignments at a time.

    Attributes:
        replicas: of each partition, as it is.
        targets: of those that are on their way.
        requests: how many partitions each request was about.
        is_lagging: what was begun last is not in the metadata yet.
    """

    def __init__(self, partitions: int, limit: int = 100, *, brokers_full: set[int] | None = None):
        self.replicas: dict[int, tuple[int, ...]] = dict.fromkeys(range(partitions), (0,))
        self.targets: dict[int, tuple[int, ...]] = {}
        self.requests: list[int] = []
        self.is_lagging = False
        self._limit = limit
        self._full = brokers_full or set()

    def describe_topics(self) -> Mapping[str, TopicDescription]:
        described = tuple(self._describe(number) for number in self.replicas)
        return {"t": TopicDescription("t", TopicId(b"t" * 16), False, described, {})}

    def _describe(self, number: int) -> PartitionDescription:
        old = self.replicas[number]
        new = old if self.is_lagging else self.targets.get(number, old)
        replicas = (*new, *(broker for broker in old if broker not in new))
        return PartitionDescription(
            number,
            BrokerId(0),
            LeaderEpoch(0),
            "",
            PartitionEpoch(0),
            ids(replicas),
            ids(old),
            (),
            (),
            adding_replicas=ids(broker for broker in new if broker not in old),
            removing_replicas=ids(broker for broker in old if broker not in new),
        )

    def reassign_partitions(
        self, assignments: Mapping[PartitionName, Sequence[int] | None]
    ) -> Mapping[PartitionName, MillraceError | None]:
        self.requests.append(len(assignments))
        return {
            place: self._reassign(place[1], assignment) for place, assignment in assignments.items()
        }

    def _reassign(self, number: int, replicas: Sequence[int] | None) -> MillraceError | None:
        assert replicas is not None
        wanted = tuple(replicas)
        if not {*wanted} <= {*BROKERS}:
            return InvalidReplicaAssignmentError("there is no such broker")
        if self.targets.get(number, wanted) != wanted:
            return ReassignmentRefusedError(
                "it is on its way elsewhere", reason=ReassignmentReason.IN_PROGRESS
            )
        if number not in self.targets and wanted != self.replicas[number]:
            if len(self.targets) >= self._limit or self._full & {*wanted}:
                return ReassignmentRefusedError("no room", reason=ReassignmentReason.LIMIT_REACHED)
            self.targets[number] = wanted
        return None

    def complete(self, *numbers: int) -> None:
        for number in numbers or list(self.targets):
            self.replicas[number] = self.targets.pop(number)

    def free(self) -> None:
        self._full = set()


def plan(partitions: int, *replicas: int) -> dict[PartitionName, list[int]]:
    return {("t", number): list(replicas) for number in range(partitions)}


def reason_of(error: MillraceError) -> ReassignmentReason | None:
    assert isinstance(error, ReassignmentRefusedError)
    return error.reason


def numbers(places: Mapping[PartitionName, object]) -> list[int]:
    return [partition for _, partition in places]


def test_what_is_beyond_the_limit_is_begun_as_others_end() -> None:
    cluster, waves = FakeCluster(5, limit=2), ReassignmentQueue(plan(5, 1, 0))
    waves.go_on(cluster)
    assert (numbers(waves.under_way), numbers(waves.waiting)) == ([0, 1], [2, 3, 4])
    waves.go_on(cluster)
    assert len(cluster.requests) == 1, "nothing has ended: nothing new has room"
    cluster.complete(0)
    waves.go_on(cluster)
    assert (numbers(waves.done), sorted(numbers(waves.under_way))) == ([0], [1, 2])
    cluster.complete()
    waves.go_on(cluster)
    assert sorted(numbers(waves.under_way)) == [3, 4]
    cluster.complete()
    waves.go_on(cluster)
    assert (len(waves.done), waves.is_over, waves.refused) == (5, True, {})


def test_no_more_are_moved_at_once_than_was_asked_for() -> None:
    cluster, waves = FakeCluster(5), ReassignmentQueue(plan(5, 1), at_once=2)
    waves.go_on(cluster)
    waves.go_on(cluster)
    assert numbers(waves.under_way) == [0, 1]
    cluster.complete(1)
    waves.go_on(cluster)
    assert sorted(numbers(waves.under_way)) == [0, 2]


def test_a_command_that_is_run_again_goes_on_where_the_first_one_was() -> None:
    cluster, first = FakeCluster(5, limit=2), ReassignmentQueue(plan(5, 1))
    first.go_on(cluster)
    cluster.complete(0)
    again = ReassignmentQueue(plan(5, 1))
    again.go_on(cluster)
    assert numbers(again.done) == [0]
    assert sorted(numbers(again.under_way)) == [1, 2]
    assert again.total == 5


def test_what_can_never_be_is_refused_at_once_and_the_rest_goes_on() -> None:
    cluster = FakeCluster(3)
    waves = ReassignmentQueue({**plan(3, 1), ("t", 1): [9], ("t", 7): [1], ("u", 0): [1]})
    waves.go_on(cluster)
    assert {place: type(error) for place, error in waves.refused.items()} == {
        ("t", 1): InvalidReplicaAssignmentError,
        ("t", 7): UnknownTopicOrPartitionError,
        ("u", 0): UnknownTopicOrPartitionError,
    }
    cluster.complete()
    waves.go_on(cluster)
    assert (numbers(waves.done), waves.is_over) == ([0, 2], True)


def test_what_is_on_its_way_elsewhere_is_refused() -> None:
    cluster = FakeCluster(1)
    cluster.targets[0] = (2,)
    waves = ReassignmentQueue(plan(1, 1))
    waves.go_on(cluster)
    assert reason_of(waves.refused["t", 0]) is ReassignmentReason.IN_PROGRESS


def test_what_somebody_took_back_is_not_begun_again() -> None:
    cluster, waves = FakeCluster(2), ReassignmentQueue(plan(2, 1))
    waves.go_on(cluster)
    waves.go_on(cluster)
    del cluster.targets[0]
    waves.go_on(cluster)
    assert reason_of(waves.refused["t", 0]) is ReassignmentReason.NOT_IN_PROGRESS
    assert numbers(waves.under_way) == [1]


def test_what_a_broker_that_lags_does_not_show_yet_was_not_taken_back() -> None:
    cluster, waves = FakeCluster(1), ReassignmentQueue(plan(1, 1))
    waves.go_on(cluster)
    cluster.is_lagging = True
    waves.go_on(cluster)
    assert numbers(waves.under_way) == [0]
    cluster.is_lagging = False
    cluster.complete()
    waves.go_on(cluster)
    assert numbers(waves.done) == [0]


def test_those_that_fit_are_not_held_up_by_those_that_do_not() -> None:
    cluster = FakeCluster(4, brokers_full={1})
    waves = ReassignmentQueue({**plan(2, 1), ("t", 2): [2], ("t", 3): [2, 0]})
    waves.go_on(cluster)
    assert (numbers(waves.under_way), numbers(waves.waiting)) == ([2, 3], [0, 1])
    cluster.complete(2)
    cluster.free()
    waves.go_on(cluster)
    assert 0 in numbers(waves.under_way)


def test_what_does_not_fit_although_nothing_else_is_under_way_is_refused() -> None:
    cluster, waves = FakeCluster(1200, brokers_full={1}), ReassignmentQueue(plan(1200, 1))
    waves.go_on(cluster)
    assert len(waves.refused) == 1200
    assert waves.is_over
    assert max(cluster.requests) <= 500


def test_a_plan_that_only_changes_who_is_preferred_is_done_at_the_next_look() -> None:
    cluster, waves = FakeCluster(1), ReassignmentQueue(plan(1, 1, 0))
    cluster.replicas[0] = (0, 1)
    waves.go_on(cluster)
    cluster.complete()
    waves.go_on(cluster)
    assert waves.is_over
