"""Positions under names: what a request comes to, and what the log says of it afterwards."""

from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.topics_view import Topics

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    decode,
    encode,
)
from millrace.core.coordinator.kept_records import SLACK_RECORDS
from millrace.core.coordinator.positions.position import (
    NAME_BYTES_MAX,
    REQUEST_POSITIONS_MAX,
    CommitNumber,
    Kind,
    Position,
    PositionKey,
    PositionsConfig,
)
from millrace.core.coordinator.positions.records import PositionRecord
from millrace.core.errors import InvalidPositionError, PositionsFullError
from millrace.core.ids import Offset, TopicId, TopicPartition, WallMs

NOW: Final = WallMs(1_700_000_000_000)
DAY: Final = 86_400_000
ORDERS: Final = TopicId(b"orders".ljust(16))
CLICKS: Final = TopicId(b"clicks".ljust(16))


def at(partition: int, topic_id: TopicId = ORDERS) -> TopicPartition:
    return TopicPartition(topic_id, partition)


def position(offset: int, leader_epoch: int = 3, metadata: str = "") -> Position:
    return Position(offset, leader_epoch, metadata)


class Log:
    """A machine at the head of the log that it writes, as a leader's shell keeps it."""

    def __init__(self, config: PositionsConfig | None = None, **bounds: int) -> None:
        self.config = config or PositionsConfig()
        self.bounds = bounds
        self.records: list[tuple[bytes, bytes | None, WallMs]] = []
        self.start = 0
        self.machine = self.new_machine()

    def new_machine(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, GroupsConfig(), Offset(self.start), **self.bounds)

    def take(self, result: Result[CoordinatorRecord, object]) -> None:
        for record in result.records:
            self.machine.replay(record, Offset(self.start + len(self.records)))
            self.records.append((*encode(record), record.timestamp))

    def resolve(self, name: str, proposals: Mapping[TopicPartition, Position]) -> object:
        result = self.machine.handle_resolve_initial(name, proposals, NOW)
        self.take(result)  # type: ignore[arg-type]
        return result.response

    def commit(
        self, name: str, positions: Mapping[TopicPartition, Position], now: WallMs = NOW
    ) -> None:
        self.take(self.machine.handle_commit(name, positions, now))  # type: ignore[arg-type]

    def delete(self, name: str) -> None:
        self.take(self.machine.handle_delete(name, NOW))  # type: ignore[arg-type]

    def advance_start(self) -> None:
        gone = self.machine.oldest_offset - self.start
        del self.records[:gone]
        self.start += gone

    def read_again(self) -> GroupCoordinator:
        machine = self.new_machine()
        for offset, record in enumerate(self.records, self.start):
            machine.replay(decode(*record), Offset(offset))
        return machine


def state(machine: GroupCoordinator) -> object:
    return machine.next_offset, {
        (name, kind): machine.positions(name, kind) for name in machine.names() for kind in Kind
    }


def test_the_first_proposal_stays() -> None:
    log = Log()
    assert log.resolve("q", {at(0): position(5)}) == {at(0): position(5)}
    assert log.resolve("q", {at(0): position(9), at(1): position(7)}) == {
        at(0): position(5),
        at(1): position(7),
    }
    assert log.machine.positions("q", Kind.INITIAL) == {at(0): position(5), at(1): position(7)}


def test_what_is_only_asked_again_writes_nothing() -> None:
    log = Log()
    log.resolve("q", {at(0): position(5)})
    assert log.machine.handle_resolve_initial("q", {at(0): position(9)}, NOW).records == []


def test_handling_changes_nothing() -> None:
    log = Log()
    log.commit("q", {at(0): position(5)})
    before = state(log.machine)
    log.machine.handle_resolve_initial("q", {at(1): position(1)}, NOW)
    log.machine.handle_commit("q", {at(0): position(6)}, NOW)
    log.machine.handle_delete("q", NOW)
    log.machine.handle_expire(["q"], WallMs(NOW + 100 * DAY), lambda _: False, Topics())
    assert state(log.machine) == before


def test_the_last_commit_counts_and_is_not_an_initial_position() -> None:
    log = Log()
    log.commit("q", {at(0): position(5, 1, "a"), at(2): position(1)})
    log.commit("q", {at(0): position(4, 2, "b")})
    assert log.machine.positions("q", Kind.COMMITTED) == {
        at(0): position(4, 2, "b"),
        at(2): position(1),
    }
    assert log.machine.positions("q", Kind.INITIAL) == {}


def member_commit(log: Log, positions: Mapping[TopicPartition, Position], *commit: object) -> None:
    """Commit as a member does whose commits the coordinator allows."""
    number = CommitNumber(*commit)  # type: ignore[arg-type]
    kept = log.machine._positions
    log.take(kept.handle_commit("q", positions, NOW, number))  # type: ignore[arg-type]


def committed(machine: GroupCoordinator) -> dict[int, int]:
    found = machine.positions("q", Kind.COMMITTED)
    return {where.partition: each.offset for where, each in found.items()}


def test_an_attempt_that_comes_after_the_next_commit_takes_nothing_back() -> None:
    log = Log()
    member_commit(log, {at(0): position(5)}, "m", 1)
    member_commit(log, {at(0): position(9)}, "m", 2)
    member_commit(log, {at(0): position(5)}, "m", 1)
    assert committed(log.machine) == {0: 9}


def test_an_attempt_that_is_overtaken_in_one_partition_counts_in_the_others() -> None:
    log = Log()
    member_commit(log, {at(0): position(9)}, "m", 2)
    member_commit(log, {at(0): position(5), at(1): position(7)}, "m", 1)
    assert committed(log.machine) == {0: 9, 1: 7}


def test_a_member_may_go_back_with_its_next_commit_and_repeat_one() -> None:
    log = Log()
    member_commit(log, {at(0): position(9)}, "m", 1)
    member_commit(log, {at(0): position(4)}, "m", 2)
    member_commit(log, {at(0): position(4)}, "m", 2)
    assert committed(log.machine) == {0: 4}


def test_each_member_counts_its_own_commits() -> None:
    log = Log()
    member_commit(log, {at(0): position(5)}, "m", 70)
    member_commit(log, {at(0): position(6)}, "n", 1)
    log.commit("q", {at(0): position(2)})
    assert committed(log.machine) == {0: 2}
    member_commit(log, {at(0): position(6)}, "n", 1)
    assert committed(log.machine) == {0: 6}


def test_another_coordinator_knows_the_numbers_of_commits_also_of_repeated_records() -> None:
    log = Log(slack_records=0)
    member_commit(log, {at(0): position(9)}, "m", 2)
    for offset in range(20):
        log.commit("other", {at(1): position(offset)})
        log.advance_start()
    assert log.start > 0
    log.machine = log.read_again()
    member_commit(log, {at(0): position(5)}, "m", 1)
    assert committed(log.machine) == {0: 9}


def test_a_topic_that_is_made_again_has_no_position() -> None:
    log = Log()
    log.resolve("q", {at(0): position(5)})
    assert log.resolve("q", {at(0, CLICKS): position(0)}) == {at(0, CLICKS): position(0)}


def test_a_deleted_name_is_gone() -> None:
    log = Log()
    log.commit("b", {at(0): position(1)})
    log.resolve("a", {at(0): position(1)})
    assert sorted(log.machine.names()) == ["a", "b"]
    log.delete("b")
    log.delete("b")
    assert log.machine.names() == ["a"]
    assert len(log.machine) == 1
    assert log.resolve("b", {at(0): position(8)}) == {at(0): position(8)}


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "n" * (NAME_BYTES_MAX + 1)])
def test_a_name_has_bounds(name: str) -> None:
    log = Log()
    for ask in (
        lambda: log.resolve(name, {at(0): position(1)}),
        lambda: log.commit(name, {at(0): position(1)}),
        lambda: log.delete(name),
        lambda: log.machine.positions(name, Kind.INITIAL),
    ):
        with pytest.raises(InvalidPositionError):
            ask()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "wrong",
    [position(-1), position(2**63), position(1, -2), position(1, 2**31), position(1, 1, "é" * 3)],
)
def test_a_position_has_bounds(wrong: Position) -> None:
    log = Log(PositionsConfig(metadata_bytes_max=5))
    with pytest.raises(InvalidPositionError):
        log.commit("q", {at(0): wrong})
    with pytest.raises(InvalidPositionError):
        log.resolve("q", {at(0): wrong})
    assert not log.records


def test_a_request_has_bounds() -> None:
    log = Log()
    many = {at(number): position(1) for number in range(REQUEST_POSITIONS_MAX + 1)}
    with pytest.raises(InvalidPositionError, match="at most 1000"):
        log.commit("q", many)


def test_there_is_room_for_so_many_positions_and_old_ones_may_change() -> None:
    log = Log(PositionsConfig(partition_positions_max=2))
    log.commit("q", {at(0): position(1), at(1): position(1)})
    with pytest.raises(PositionsFullError, match="partition_positions_max"):
        log.resolve("q", {at(0): position(1)})
    log.commit("q", {at(0): position(2), at(1): position(2)})
    log.delete("q")
    log.resolve("q", {at(0): position(1)})


def test_there_is_room_for_so_many_positions_under_a_name() -> None:
    log = Log(PositionsConfig(name_positions_max=2))
    log.commit("q", {at(0): position(1)})
    log.resolve("q", {at(0): position(1)})
    with pytest.raises(PositionsFullError, match="name_positions_max"):
        log.commit("q", {at(1): position(1)})
    log.commit("q", {at(0): position(2)})
    log.commit("p", {at(1): position(1)})


def expire(log: Log, days: float, *, exists: bool = True) -> list[str]:
    now = WallMs(int(NOW + days * DAY))
    names = log.machine.names()
    log.take(log.machine.handle_expire(names, now, lambda _: exists, Topics()))  # type: ignore[arg-type]
    return log.machine.names()


def test_a_name_that_nobody_touched_for_a_week_is_forgotten() -> None:
    log = Log()
    log.resolve("q", {at(0): position(1), at(1): position(1)})
    log.commit("q", {at(0): position(2)})
    assert expire(log, 7) == ["q"]
    log.commit("q", {at(0): position(3)}, WallMs(NOW + 7 * DAY))
    assert expire(log, 14) == ["q"]
    assert log.machine.positions("q", Kind.INITIAL), "a reader that goes on keeps all of them"
    assert expire(log, 14.1) == []
    assert len(log.machine) == 0


def test_where_nothing_was_committed_the_initial_positions_are_kept_longer() -> None:
    log = Log()
    log.resolve("q", {at(0): position(1)})
    assert expire(log, 90) == ["q"]
    assert expire(log, 90.1) == []


def test_much_is_forgotten_in_several_goes_and_names_whole() -> None:
    log = Log(expired_at_once=3)
    for name in "abcd":
        log.resolve(name, {at(0): position(1)})
        log.commit(name, {at(0): position(1)})
    assert expire(log, 8) == ["c", "d"]
    assert expire(log, 8) == []


def test_positions_in_a_deleted_topic_go_although_their_name_is_used() -> None:
    log = Log()
    log.commit("q", {at(0): position(1)})
    log.commit("q", {at(0, CLICKS): position(1)}, WallMs(NOW + 6 * DAY))
    names = log.machine.names()
    result = log.machine.handle_expire(
        names, WallMs(NOW + 8 * DAY), lambda each: each == CLICKS, Topics()
    )
    log.take(result)  # type: ignore[arg-type]
    assert log.machine.positions("q", Kind.COMMITTED) == {at(0, CLICKS): position(1)}


def test_nothing_expires_where_the_settings_say_never() -> None:
    log = Log(PositionsConfig(retention_ms=-1, initial_retention_ms=-1))
    log.commit("q", {at(0): position(1)})
    log.resolve("p", {at(0): position(1)})
    assert sorted(expire(log, 10_000, exists=False)) == ["p", "q"]


def test_the_log_stays_short_whatever_is_written_how_often() -> None:
    log = Log()
    cold = 500
    for number in range(cold):
        log.resolve(f"cold-{number}", {at(0): position(number)})
    longest = 0
    for number in range(20_000):
        log.commit("hot", {at(0): position(number)})
        log.advance_start()
        longest = max(longest, len(log.records))
    assert longest <= 3 * (cold + 1) + SLACK_RECORDS
    assert state(log.read_again()) == state(log.machine)
    assert log.machine.positions("cold-7", Kind.INITIAL) == {at(0): position(7)}


def test_an_empty_machine_needs_nothing_of_its_log() -> None:
    log = Log()
    assert log.machine.oldest_offset == 0
    log.commit("q", {at(0): position(1)})
    log.delete("q")
    assert log.machine.oldest_offset == log.machine.next_offset == 2


def test_records_that_move_on_keep_the_time_at_which_they_were_stored() -> None:
    log = Log(slack_records=2)
    log.commit("old", {at(0): position(1)})
    for number in range(20):
        log.commit("new", {at(0): position(number)}, WallMs(NOW + 6 * DAY))
    assert log.machine.oldest_offset > 0
    assert expire(log, 7.1) == ["new"]


_NAMES: Final = st.sampled_from(["a", "b", "c"])
_POSITIONS: Final = st.dictionaries(
    st.builds(at, st.integers(0, 2), st.sampled_from([ORDERS, CLICKS])),
    st.builds(Position, st.integers(0, 9), st.integers(-1, 3), st.sampled_from(["", "é"])),
    min_size=1,
    max_size=4,
)
_STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("resolve"), _NAMES, _POSITIONS),
        st.tuples(st.just("commit"), _NAMES, _POSITIONS),
        st.tuples(st.just("delete"), _NAMES, st.just({})),
        st.tuples(st.just("advance"), st.just(""), st.just({})),
        st.tuples(st.just("lose"), st.just(""), st.just({})),
    ),
    max_size=60,
)


@given(steps=_STEPS, slack=st.integers(0, 4), data=st.data())
@settings(max_examples=300)
def test_the_log_from_its_start_is_the_state_and_the_state_is_the_models(
    steps: list[tuple[str, str, Mapping[TopicPartition, Position]]],
    slack: int,
    data: st.DataObject,
) -> None:
    """With failovers that lose what was not committed, and a log start that moves."""
    _run(Log(slack_records=slack), steps, data)


Model = dict[tuple[str, Kind, TopicPartition], Position]


def _run(
    log: Log,
    steps: list[tuple[str, str, Mapping[TopicPartition, Position]]],
    data: st.DataObject,
) -> None:
    model: Model = {}
    history = [(0, model)]  # After each request: the log's end, and what was kept then.
    for what, name, positions in steps:
        if what == "advance":  # All is committed by then.
            log.advance_start()
            history = history[-1:]
            continue
        if what == "lose":  # Another leads, who lacks the last requests.
            kept = data.draw(st.integers(1, len(history)))
            del history[kept:]
            end, model = history[-1]
            del log.records[end - log.start :]
            log.machine = log.read_again()
        elif what == "resolve":
            model = dict(model)
            expected = {
                each: model.setdefault((name, Kind.INITIAL, each), proposal)
                for each, proposal in positions.items()
            }
            assert log.resolve(name, positions) == expected
        elif what == "commit":
            committed = {(name, Kind.COMMITTED, each): p for each, p in positions.items()}
            model = {**model, **committed}
            log.commit(name, positions)
        else:
            model = {key: each for key, each in model.items() if key[0] != name}
            log.delete(name)
        history.append((log.machine.next_offset, model))
        assert _contents(log.machine) == model
        assert _contents(log.read_again()) == model
        assert log.read_again().next_offset in (log.machine.next_offset, log.start)
    assert len(log.machine) == len(model)


def _contents(machine: GroupCoordinator) -> Model:
    return {
        (name, kind, where): each
        for name in machine.names()
        for kind in Kind
        for where, each in machine.positions(name, kind).items()
    }


def test_a_record_survives_the_log() -> None:
    key = PositionKey(Kind.COMMITTED, "späße", at(7))
    for stored in (None, position(2**62, -1, "größe"), position(0, 2**31 - 1)):
        record = PositionRecord(key, stored, NOW)
        assert decode(*encode(record), NOW) == record
