"""Which job on a replica's files begins when, and what follows when it fails."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    NotControllerError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import MonotonicMs, Offset, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.core.replica.replication.effects import (
    Change,
    ChangeLog,
    DropReplica,
    OpenLog,
    SetAside,
)
from millrace.core.replica.replication.file_jobs import (
    DeleteTopics,
    FileJobs,
    Job,
    Outcome,
    QueuedJob,
)
from millrace.core.replica.replication.placement import Move
from millrace.core.topics import parse_topic_name

FULL, BUSY = StorageFullError("no room"), StorageBusyError("no descriptors")
FAILED, DAMAGED = LogDirFailedError("it is gone"), CorruptLogError("a bit flipped")
RETRY_MS = 1000


def of(number: int = 0, topic: int = 0) -> TopicPartition:
    return TopicPartition(TopicId(bytes([topic]) * 16), number)


def opening(replica: TopicPartition | None = None) -> OpenLog:
    replica = replica or of()
    topic = Topic(
        name=parse_topic_name("t"), topic_id=replica.topic_id, partitions=(), overrides={}
    )
    return OpenLog(replica, topic)


def moving(replica: TopicPartition | None = None) -> Move[Any]:
    return Move(replica or of(), None, None)


def cut() -> ChangeLog:
    return ChangeLog(of(), Change.TRUNCATE, Offset(5))


class Shell:
    """Begins what is ready; a test says how it ends."""

    def __init__(self) -> None:
        self.jobs = FileJobs(RETRY_MS)
        self.now = 0

    def ready(self) -> list[Job]:
        return self.jobs.ready(MonotonicMs(self.now))

    def want(self, *jobs: QueuedJob) -> list[Job]:
        for job in jobs:
            self.jobs.want(job)
        return self.ready()

    def change(self, job: ChangeLog) -> ChangeLog:
        self.jobs.change(job)
        assert self.ready() == [job]
        return job

    def delete(self, *topic_ids: TopicId) -> list[Job]:
        self.jobs.delete(topic_ids)
        return self.ready()

    def close(self, replica: TopicPartition | None = None) -> list[Job]:
        self.jobs.on_closed(replica or of())
        return self.ready()

    def done(self, job: Job) -> list[Job]:
        self.jobs.on_done(job)
        return self.ready()

    def fail(self, job: Job, error: MillraceError) -> Outcome:
        return self.jobs.on_failed(job, error, MonotonicMs(self.now))

    def wait(self, ms: int) -> list[Job]:
        self.now += ms
        return self.ready()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is remembered of any job."""
        jobs = self.jobs
        return not (jobs._files or jobs._opening or jobs._leaving)


@pytest.fixture
def shell() -> Shell:
    return Shell()


# --- What waits --------------------------------------------------------------------------------


def test_one_job_at_a_time_concerns_the_files_of_a_partition(shell: Shell) -> None:
    jobs: list[QueuedJob] = [opening(), moving(), DropReplica(of()), opening(), SetAside(of())]
    other = opening(of(1))
    assert shell.want(*jobs) == [jobs[0]]
    assert shell.want(other) == [other]
    for job, following in pairwise(jobs):
        assert shell.done(job) == [following]
    assert shell.done(jobs[-1]) == []
    assert shell.done(other) == []
    assert shell.is_idle


def test_a_change_of_a_log_waits_for_nothing(shell: Shell) -> None:
    shell.want(moving())
    first, second = shell.change(cut()), shell.change(ChangeLog(of(), Change.FLUSH))
    assert shell.done(second) == shell.done(first) == []


def test_a_partition_that_comes_back_is_opened_when_its_old_files_are_gone(shell: Shell) -> None:
    before, drop, after = opening(), DropReplica(of()), opening()
    shell.want(before)
    shell.close()
    assert shell.want(drop, after) == []
    assert shell.jobs.is_void(before), "it is of the log that goes"
    assert shell.jobs.leads_to_opening(before)
    assert shell.done(before) == [drop]
    assert shell.jobs.leads_to_opening(drop)
    assert shell.done(drop) == [after]
    assert not shell.jobs.is_void(after)


def test_an_opening_that_waits_is_not_needed_when_the_partition_is_given_up_again(
    shell: Shell,
) -> None:
    first, second = DropReplica(of()), DropReplica(of())
    shell.want(first, opening())
    shell.close()
    assert shell.want(second) == []
    assert not shell.jobs.leads_to_opening(first)
    assert shell.done(first) == [second]


# --- What fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "outcomes"),
    [
        (opening(), (Outcome.AGAIN, Outcome.OFFLINE, Outcome.OFFLINE)),
        (cut(), (Outcome.AGAIN, Outcome.OVER, Outcome.OFFLINE)),
        (ChangeLog(of(), Change.FLUSH), (Outcome.AGAIN, Outcome.OVER, Outcome.OFFLINE)),
        (DropReplica(of()), (Outcome.AGAIN, Outcome.OVER, Outcome.OVER)),
        (SetAside(of()), (Outcome.OVER, Outcome.OVER, Outcome.OVER)),
        (moving(), (Outcome.OVER, Outcome.OVER, Outcome.OVER)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_follows_from_a_failure(job: Job, outcomes: Sequence[Outcome]) -> None:
    may_pass, failed, damaged = outcomes
    for error, outcome in (
        (FULL, may_pass),
        (BUSY, may_pass),
        (FAILED, failed),
        (DAMAGED, damaged),
    ):
        shell = Shell()
        if isinstance(job, ChangeLog):
            shell.change(job)
        else:
            assert not isinstance(job, DeleteTopics)
            shell.want(job)
        assert shell.fail(job, error) is outcome
        assert shell.is_idle is (outcome is not Outcome.AGAIN)
        assert shell.wait(RETRY_MS - 1) == []
        assert shell.wait(1) == ([job] if outcome is Outcome.AGAIN else [])
        assert shell.wait(10 * RETRY_MS) == [], "it is under way"


def test_a_move_that_leaves_no_log_takes_the_replica_offline(shell: Shell) -> None:
    job = moving()
    shell.want(job)
    outcome = shell.jobs.on_failed(job, FULL, MonotonicMs(0), is_log_lost=True)
    assert outcome is Outcome.OFFLINE
    assert shell.is_idle


def test_what_waits_to_be_tried_again_holds_back_what_comes_after_it(shell: Shell) -> None:
    drop, after = DropReplica(of()), opening()
    shell.want(drop, after)
    shell.fail(drop, FULL)
    assert shell.ready() == []
    assert shell.wait(RETRY_MS) == [drop]
    assert shell.done(drop) == [after]


def test_an_opening_is_not_tried_again_for_a_replica_that_is_given_up(shell: Shell) -> None:
    job, drop = opening(), DropReplica(of())
    shell.want(job)
    shell.fail(job, FULL)
    shell.close()
    assert shell.want(drop) == [drop]
    assert shell.done(drop) == []
    assert shell.wait(RETRY_MS) == []
    assert shell.is_idle


def test_what_fails_of_a_replica_that_is_given_up_has_no_consequence(shell: Shell) -> None:
    job, waiting, under_way = opening(), shell.change(cut()), shell.change(cut())
    shell.want(job)
    shell.fail(waiting, BUSY)
    shell.close()
    assert [shell.jobs.is_void(each) for each in (job, under_way)] == [True, True]
    for each in (job, under_way):
        assert shell.fail(each, DAMAGED) is Outcome.VOID
    assert shell.wait(RETRY_MS) == []
    assert shell.is_idle


def test_a_log_start_that_waits_for_the_disk_is_not_ordered_again_unless_it_is_later(
    shell: Shell,
) -> None:
    first = shell.change(ChangeLog(of(), Change.ADVANCE_START, Offset(5)))
    shell.fail(first, FULL)
    for offset in (4, 5):
        shell.jobs.change(ChangeLog(of(), Change.ADVANCE_START, Offset(offset)))
    assert shell.ready() == []
    later = shell.change(ChangeLog(of(), Change.ADVANCE_START, Offset(6)))
    assert shell.wait(RETRY_MS) == [first]
    for each in (first, later):
        shell.done(each)
    assert shell.is_idle
    shell.done(shell.change(ChangeLog(of(), Change.ADVANCE_START, Offset(6))))


def test_of_many_log_starts_that_wait_for_the_disk_only_the_latest_is_tried_again(
    shell: Shell,
) -> None:
    def advance(offset: int) -> ChangeLog:
        return shell.change(ChangeLog(of(), Change.ADVANCE_START, Offset(offset)))

    truncation = shell.change(cut())
    shell.fail(truncation, FULL)
    other = shell.change(ChangeLog(of(1), Change.ADVANCE_START, Offset(1)))
    shell.fail(other, FULL)
    for offset in range(1, 100):  # One after the other.
        assert shell.fail(advance(offset), FULL) is Outcome.AGAIN
    at_once = [advance(offset) for offset in range(100, 200)]
    for job in at_once:
        assert shell.fail(job, FULL) is Outcome.AGAIN
    assert shell.wait(RETRY_MS) == [truncation, other, at_once[-1]]
    for each in (truncation, other, at_once[-1]):
        shell.done(each)
    assert shell.is_idle


# --- Deleted topics ----------------------------------------------------------------------------


def test_topics_are_deleted_when_no_log_is_being_opened_and_none_of_theirs_moves(
    shell: Shell,
) -> None:
    gone, other = of(topic=1).topic_id, of(topic=2).topic_id
    opened, moves, moves_too = opening(of(topic=3)), moving(of(topic=1)), moving(of(topic=2))
    shell.want(opened, moves, moves_too)
    assert shell.delete(gone) == []
    assert shell.done(moves) == []
    (deletion,) = shell.done(opened)
    assert isinstance(deletion, DeleteTopics)
    assert deletion.topic_ids == (gone,)
    assert shell.delete(gone, other) == [], "one at a time"
    shell.done(moves_too)
    (deletion,) = shell.done(deletion)
    assert isinstance(deletion, DeleteTopics)
    assert deletion.topic_ids == (gone, other)
    assert shell.done(deletion) == []
    assert shell.wait(10 * RETRY_MS) == [], "until an image names them again"
    assert shell.delete() == []


def test_an_opening_that_waits_to_be_tried_again_does_not_hold_deletions_back(
    shell: Shell,
) -> None:
    job = opening()
    shell.want(job)
    shell.fail(job, FULL)
    assert len(shell.delete(of(topic=1).topic_id)) == 1


def test_a_deletion_is_tried_again_after_a_pause_or_with_the_next_image(shell: Shell) -> None:
    topic_id = of(topic=1).topic_id
    (job,) = shell.delete(topic_id)
    assert shell.fail(job, NotControllerError("ask another one")) is Outcome.AGAIN
    assert shell.wait(RETRY_MS - 1) == []
    (job,) = shell.wait(1)
    shell.fail(job, DAMAGED)
    (job,) = shell.delete(topic_id)
    shell.jobs.delete(())  # The newest image does not want it.
    shell.fail(job, FULL)
    assert shell.wait(RETRY_MS) == []
