"""Each anomaly, planted in a clean history, is found, and nothing else is."""

from collections.abc import Callable

import pytest
from tests.checkers.check import check
from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.checkers.report import ANOMALIES, Report
from tests.fakes.histories import PerfectCluster

Plant = Callable[[PerfectCluster], None]

PLANTS: dict[str, Plant] = {}
IN_TRANSACTIONS = ("C30", "C31", "C32")
"""`test_transactions` plants these."""


def plant(kind: str) -> Callable[[Plant], Plant]:
    def register(planted: Plant) -> Plant:
        PLANTS[kind] = planted
        return planted

    return register


def judge(cluster: PerfectCluster) -> Report:
    return check(
        cluster.finish(),
        availability_ns=2_000_000_000,
        realtime_lag_ns=5_000_000_000,
        allowances={"fds": 10},
    )


def unknown_send(cluster: PerfectCluster, key: int) -> int:
    value = cluster.new_value()
    for type in (INVOKE, INFO):
        cluster.record("gone", type, "send", sends=[Send(key, value)])
    return value


def failed_send(cluster: PerfectCluster, key: int) -> int:
    value = cluster.new_value()
    for type in (INVOKE, FAIL):
        cluster.record("unlucky", type, "send", sends=[Send(key, value)])
    return value


@plant("inconsistent-offset")
def another_value_at_an_offset(cluster: PerfectCluster) -> None:
    value = unknown_send(cluster, 0)
    cluster.show("r", [{0: [(5, value)]}])


@plant("duplicate")
def a_value_twice(cluster: PerfectCluster) -> None:
    cluster.logs[0].append(cluster.logs[0][3])


@plant("phantom")
def a_value_nobody_sent(cluster: PerfectCluster) -> None:
    cluster.logs[0].append(cluster.new_value())


@plant("aborted-read")
def a_value_that_was_refused(cluster: PerfectCluster) -> None:
    cluster.logs[0].append(failed_send(cluster, 0))


@plant("lost-write")
def an_acknowledged_value_that_is_gone(cluster: PerfectCluster) -> None:
    (send,) = cluster.send("s", 0)
    assert send.offset is not None
    cluster.logs[0][send.offset] = None
    cluster.send("s", 0)


@plant("unseen")
def an_acknowledged_value_after_the_end(cluster: PerfectCluster) -> None:
    cluster.send("s", 0)
    cluster.logs[0].pop()


@plant("int-poll-skip")
def a_jump_within_a_poll(cluster: PerfectCluster) -> None:
    records = cluster.records(0)
    cluster.show("r", [{0: [records[0], records[2]]}])


@plant("int-nonmonotonic-poll")
def a_poll_backwards(cluster: PerfectCluster) -> None:
    records = cluster.records(0)
    cluster.show("r", [{0: [records[1], records[0]]}])


@plant("poll-skip")
def a_jump_between_polls(cluster: PerfectCluster) -> None:
    records = cluster.records(0)
    cluster.show("r", [{0: records[:2]}])
    cluster.show("r", [{0: records[3:4]}])


@plant("nonmonotonic-poll")
def going_back_between_polls(cluster: PerfectCluster) -> None:
    records = cluster.records(0)
    cluster.show("r", [{0: records[:2]}])
    cluster.show("r", [{0: records[1:3]}])


@plant("int-nonmonotonic-send")
def sends_in_another_order(cluster: PerfectCluster) -> None:
    first, second = cluster.new_value(), cluster.new_value()
    sends = [Send(0, first), Send(0, second)]
    cluster.record("s", INVOKE, "send", sends=sends)
    end = len(cluster.logs[0])
    cluster.logs[0] += [second, first]
    cluster.record("s", OK, "send", sends=[Send(0, first, end + 1), Send(0, second, end)])


@plant("nonmonotonic-send")
def a_process_whose_second_send_comes_first(cluster: PerfectCluster) -> None:
    # Both are invoked before either is acknowledged, so that real time says nothing.
    first, second = cluster.new_value(), cluster.new_value()
    end = len(cluster.logs[0])
    cluster.logs[0] += [second, first]
    cluster.record("s", INVOKE, "send", sends=[Send(0, first)])
    cluster.record("s", INVOKE, "send", sends=[Send(0, second)])
    cluster.record("s", OK, "send", sends=[Send(0, first, end + 1)])
    cluster.record("s", OK, "send", sends=[Send(0, second, end)])


@plant("realtime-inversion")
def a_later_send_with_a_smaller_offset(cluster: PerfectCluster) -> None:
    end = len(cluster.logs[0])
    first, second = cluster.new_value(), cluster.new_value()
    cluster.logs[0] += [second, first]
    for process, value, offset in (("s", first, end + 1), ("t", second, end)):
        cluster.record(process, INVOKE, "send", sends=[Send(0, value)])
        cluster.record(process, OK, "send", sends=[Send(0, value, offset)])


@plant("stale-end-offset")
def an_end_below_what_was_acknowledged(cluster: PerfectCluster) -> None:
    (send,) = cluster.send("s", 0)
    assert send.offset is not None
    cluster.list_offsets("a", {0: send.offset})


@plant("end-offset-regression")
def an_end_that_goes_back(cluster: PerfectCluster) -> None:
    end = len(cluster.logs[0])
    unknown_send(cluster, 0)
    cluster.list_offsets("a", {0: end + 1})
    cluster.list_offsets("a", {0: end})


FOREVER = 2**62


def assigned(cluster: PerfectCluster, member: str, *, until: int = FOREVER) -> None:
    cluster.record(member, INFO, "group", details=["alive", until])
    cluster.record(member, INFO, "group", details=["assigned", [0]])


def given_up(cluster: PerfectCluster, member: str) -> None:
    cluster.record(member, INFO, "group", details=["given-up", [0]])


def read(cluster: PerfectCluster, member: str, first: int, count: int) -> None:
    cluster.show(member, [{0: cluster.records(0, first)[:count]}])


def commit(cluster: PerfectCluster, member: str, offset: int) -> None:
    for type in (INVOKE, OK):
        cluster.record(member, type, "commit", details={0: offset})


def stored(cluster: PerfectCluster, offset: int) -> None:
    for type in (INVOKE, OK):
        cluster.record("observer", type, "positions", details={0: offset})


def follow(cluster: PerfectCluster) -> None:
    """Let one member read three records and commit them, and another one follow it."""
    assigned(cluster, "m1")
    read(cluster, "m1", 0, 3)
    commit(cluster, "m1", 3)
    given_up(cluster, "m1")
    assigned(cluster, "m2")
    read(cluster, "m2", 3, 2)
    commit(cluster, "m2", 5)
    stored(cluster, 5)


@plant("commit-regression")
def a_position_of_a_former_owner(cluster: PerfectCluster) -> None:
    follow(cluster)
    stored(cluster, 4)


@plant("late-commit")
def a_commit_of_a_former_owner(cluster: PerfectCluster) -> None:
    follow(cluster)
    commit(cluster, "m1", 4)


@plant("two-owners")
def a_partition_that_another_member_has(cluster: PerfectCluster) -> None:
    follow(cluster)
    assigned(cluster, "m1")


@plant("read-by-former-owner")
def a_member_that_reads_on(cluster: PerfectCluster) -> None:
    follow(cluster)
    read(cluster, "m1", 3, 2)


@plant("group-skip")
def a_record_that_no_member_gets(cluster: PerfectCluster) -> None:
    follow(cluster)
    given_up(cluster, "m2")
    assigned(cluster, "m3")
    read(cluster, "m3", 6, 1)


@plant("commit-ahead")
def a_position_beyond_what_was_handed_out(cluster: PerfectCluster) -> None:
    follow(cluster)
    stored(cluster, 6)


def replica(
    cluster: PerfectCluster, broker: str, *, digests: str = "abcd", epochs: int = 1, end: int = 4
) -> None:
    cluster.record(
        broker,
        INFO,
        "replica",
        details={
            "key": 0,
            "log_start": 0,
            "high_watermark": end,
            "batches": [[at, at, digest] for at, digest in enumerate(digests)],
            "epochs": [[epochs, 0], [7, 3]],
        },
    )


@plant("replica-divergence")
def other_bytes_below_the_high_watermark(cluster: PerfectCluster) -> None:
    replica(cluster, "broker-1")
    replica(cluster, "broker-2", digests="abXd")


@plant("metadata-fork")
def two_states_of_one_epoch(cluster: PerfectCluster) -> None:
    cluster.metadata(0, 1, observer="broker-2", isr=(1, 2))


@plant("metadata-repeat")
def an_epoch_that_comes_again(cluster: PerfectCluster) -> None:
    cluster.metadata(0, 1)


@plant("metadata-regression")
def an_older_leader_epoch(cluster: PerfectCluster) -> None:
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    cluster.metadata(0, 3, leader_epoch=1)


@plant("two-leaders")
def two_leaders_of_one_epoch(cluster: PerfectCluster) -> None:
    cluster.metadata(0, 2, leader=2)


@plant("isr-outside-replicas")
def a_stranger_in_sync(cluster: PerfectCluster) -> None:
    cluster.metadata(0, 2, isr=(1, 4))


@plant("unavailable")
def a_write_that_waits(cluster: PerfectCluster) -> None:
    cluster.record("s", INVOKE, "send", sends=[Send(0, cluster.new_value())])
    cluster.now_ns += 3_000_000_000
    cluster.record("s", INFO, "send", sends=[Send(0, cluster.new_value())])
    cluster.send("s", 0)


@plant("realtime-lag")
def an_old_log(cluster: PerfectCluster) -> None:
    cluster.send("s", 0)
    cluster.now_ns += 6_000_000_000
    cluster.show("r", [{0: cluster.records(0)[:3]}])


@plant("dishonest-error")
def a_refused_value_on_a_disk(cluster: PerfectCluster) -> None:
    value = failed_send(cluster, 0)
    cluster.record("broker-1", INFO, "dump", polled=[{0: [(len(cluster.logs[0]), value)]}])


@plant("resource-growth")
def descriptors_that_stay_open(cluster: PerfectCluster) -> None:
    for fds in (40, 51):
        cluster.record("broker-1", INFO, "resources", details={"fds": fds})


def test_every_anomaly_is_planted() -> None:
    elsewhere = {kind for kind, (check, _) in ANOMALIES.items() if check in IN_TRANSACTIONS}
    assert PLANTS.keys() | elsewhere == ANOMALIES.keys()


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_anomaly_is_found_and_nothing_else(kind: str) -> None:
    cluster = PerfectCluster()
    cluster.run(400)
    PLANTS[kind](cluster)
    report = judge(cluster)
    assert list(report.counts) == [kind], report.text()
    assert report.failures == [kind]
    assert ANOMALIES[kind][1] in report.text()


def test_each_reader_of_the_end_sees_all_that_was_acknowledged() -> None:
    """As when clients of two protocols read it, and one leaves out what the other has read."""
    cluster = PerfectCluster()
    cluster.run(100)
    whole = cluster.records(0)
    for process, read in (("other", whole), ("short", whole[:-1])):
        cluster.record(process, INVOKE, "final")
        cluster.record(process, OK, "final", polled=[{0: read}])
    report = judge(cluster)
    assert list(report.counts) == ["unseen"], report.text()


def test_a_send_may_begin_before_and_end_after_an_unclean_election() -> None:
    """A part of it was acknowledged and is gone; the rest goes on where the new log ends."""
    cluster = PerfectCluster()
    cluster.run(100)
    first, second = cluster.new_value(), cluster.new_value()
    cluster.record("s", INVOKE, "send", sends=[Send(0, first), Send(0, second)])
    end = len(cluster.logs[0])
    cluster.logs[0] = [second]
    cluster.record("s", OK, "send", sends=[Send(0, first, end), Send(0, second, 0)])
    history = cluster.finish()
    assert "int-nonmonotonic-send" in check(history).failures
    report = check(history, modes=("assign", "unclean-election"))
    assert report.is_good, report.text()


def test_a_log_may_be_old_while_things_are_broken() -> None:
    cluster = PerfectCluster()
    cluster.run(100)
    cluster.send("s", 0)
    cluster.record("nemesis", INFO, "window", details="close")
    cluster.now_ns += 60_000_000_000
    cluster.show("r", [{0: cluster.records(0)[:3]}])
    cluster.record("nemesis", INFO, "window", details="open")
    cluster.now_ns += 4_000_000_000
    cluster.show("r", [{0: cluster.records(0)[3:6]}])
    report = judge(cluster)
    assert report.is_good, report.text()
    assert 4 <= report.measures["longest_lag_s"] < 5


def late_poll(records: int, told: int) -> Report:
    """Poll once, ten seconds after the last of the records; it brings so many, and is told."""
    cluster = PerfectCluster()
    cluster.run(100)
    cluster.show("r", [{0: cluster.records(0)}])
    position = len(cluster.logs[0])
    cluster.send("s", 0, count=20)
    cluster.now_ns += 10_000_000_000
    found = cluster.records(0, position)[:records]
    cluster.show("r", [{0: found}], ends={0: position + told})
    return judge(cluster)


def test_who_polls_seldom_and_reads_in_pieces_has_seen_the_end_that_it_was_told() -> None:
    report = late_poll(records=5, told=20)
    assert report.is_good, report.text()
    assert report.measures["longest_lag_s"] < 1


@pytest.mark.parametrize(("records", "told"), [(5, 0), (5, 19), (0, 20)])
def test_to_be_told_of_an_old_end_or_of_more_than_comes_is_late(records: int, told: int) -> None:
    report = late_poll(records, told)
    assert report.failures == ["realtime-lag"]
    assert report.measures["longest_lag_s"] > 9


def test_to_be_told_where_the_log_ends_once_is_not_to_have_read_it() -> None:
    cluster = PerfectCluster()
    cluster.send("s", 0, count=20)
    cluster.show("r", [{0: cluster.records(0)[:5]}], ends={0: 20})
    cluster.now_ns += 10_000_000_000
    cluster.show("r", [{0: []}])
    assert judge(cluster).failures == ["realtime-lag"]


def test_replicas_differ_only_below_every_high_watermark() -> None:
    cluster = PerfectCluster()
    cluster.run(100)
    replica(cluster, "broker-1")
    replica(cluster, "broker-2", digests="abcX", end=3)
    assert judge(cluster).is_good
    replica(cluster, "broker-3", epochs=2)
    assert judge(cluster).failures == ["replica-divergence"]
    replica(cluster, "broker-3", digests="abc")  # What counts is how it ends.
    assert judge(cluster).is_good


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_history_is_good(seed: int) -> None:
    cluster = PerfectCluster(seed)
    cluster.run(500)
    cluster.list_offsets("a")
    report = judge(cluster)
    assert report.is_good, report.text()
    assert report.measures["acknowledged"] > 100


def test_a_member_whose_session_has_ended_is_no_owner_and_its_last_poll_is_none_of_the_next() -> (
    None
):
    cluster = PerfectCluster()
    cluster.run(100)
    assigned(cluster, "m1", until=cluster.now_ns + 4_000_000)
    cluster.record("m1", INVOKE, "poll")
    cluster.now_ns += 10_000_000
    assigned(cluster, "m2")
    read(cluster, "m2", 0, 2)
    cluster.record("m1", OK, "poll", polled=[{0: cluster.records(0)[:2]}])  # It stood still.
    assigned(cluster, "m1", until=cluster.now_ns)  # So it was given again what it had lost.
    commit(cluster, "m2", 2)
    report = judge(cluster)
    assert report.is_good, report.text()


def test_within_one_tenure_an_attempt_may_count_late_but_not_after_its_first_one() -> None:
    cluster = PerfectCluster()
    cluster.run(100)
    assigned(cluster, "m1")
    read(cluster, "m1", 0, 5)
    commit(cluster, "m1", 2)
    commit(cluster, "m1", 5)
    stored(cluster, 2)
    assert judge(cluster).is_good
    stored(cluster, 1)
    assert judge(cluster).failures == ["commit-regression"]
