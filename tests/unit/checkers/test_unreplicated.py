"""What may be lost of writes that nobody replicated, and what may not; histories of some keys."""

from tests.checkers import unreplicated
from tests.checkers.check import check
from tests.checkers.history import INFO, INVOKE, Send, of_keys
from tests.fakes.histories import PerfectCluster

SECOND_NS = 10**9


def written(count: int = 20) -> PerfectCluster:
    """One writer's values, of which a reader has read those before the last three."""
    cluster = PerfectCluster(keys=1)
    for _ in range(count):
        cluster.send("w", 0)
    cluster.show("r", [{0: cluster.records(0)[:-3]}])
    return cluster


def found(cluster: PerfectCluster) -> list[str]:
    return [anomaly.kind for anomaly in unreplicated.anomalies(cluster.finish())]


def test_a_history_without_losses_is_good() -> None:
    cluster = written()
    assert found(cluster) == []
    assert unreplicated.share_seen(cluster.ops) == 1


def test_what_was_acknowledged_may_be_lost_when_somebody_else_is_elected() -> None:
    cluster = written()
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    del cluster.logs[0][-1]
    assert found(cluster) == []


def test_what_was_acknowledged_may_not_be_lost_without_an_election() -> None:
    cluster = written()
    del cluster.logs[0][-1]
    assert found(cluster) == ["lost-write"]


def test_the_former_leader_acknowledges_until_it_hears_of_the_election() -> None:
    cluster = written()
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    cluster.now_ns += SECOND_NS
    cluster.send("w", 0)
    del cluster.logs[0][-1]
    assert found(cluster) == []


def test_an_election_excuses_nothing_that_was_lost_long_before_or_sent_after() -> None:
    cluster = written()
    lost = cluster.new_value()
    cluster.record("w", INVOKE, "send", sends=[Send(0, lost)])
    cluster.record("w", "ok", "send", sends=[Send(0, lost)])
    cluster.send("w", 0)
    cluster.show("r", [{0: cluster.records(0)}])
    cluster.now_ns += 60 * SECOND_NS
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    assert found(cluster) == ["lost-write"]
    cluster = written()
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    cluster.now_ns += 3 * SECOND_NS
    cluster.send("w", 0)
    del cluster.logs[0][-1]
    assert found(cluster) == ["lost-write"]


def test_what_was_read_is_never_lost() -> None:
    cluster = written()
    cluster.metadata(0, 2, leader=2, leader_epoch=2)
    cluster.logs[0][5] = None
    assert found(cluster) == ["lost-write"]


def test_what_is_there_stands_in_its_order() -> None:
    cluster = PerfectCluster(keys=1)
    values = [cluster.new_value() for _ in range(3)]
    cluster.record("w", INVOKE, "send", sends=[Send(0, value) for value in values])
    cluster.record("w", INFO, "send", sends=[Send(0, value) for value in values])
    cluster.logs[0] += [values[1], values[0], values[2]]
    assert found(cluster) == ["nonmonotonic-send"]
    assert unreplicated.share_seen(cluster.ops) == 1


def test_of_writes_that_nobody_answers_the_share_that_is_there_is_told() -> None:
    cluster = PerfectCluster(keys=1)
    values = [cluster.new_value() for _ in range(4)]
    cluster.record("w", INVOKE, "send", sends=[Send(0, value) for value in values])
    cluster.record("w", INFO, "send", sends=[Send(0, value) for value in values])
    cluster.logs[0] += values[2:]
    assert found(cluster) == []
    assert unreplicated.share_seen(cluster.ops) == 0.5
    assert unreplicated.share_seen([]) == 0


def test_a_history_of_some_keys_is_judged_like_one_that_has_no_others() -> None:
    cluster = PerfectCluster(keys=4)
    cluster.run(400)
    cluster.list_offsets("a")
    cluster.logs[3].append(cluster.logs[3][0])  # Doubled.
    history = cluster.finish()
    assert check(history).failures == ["duplicate"]
    report = check(list(of_keys(history, range(3))))
    assert report.is_good, report.text()
    assert check(list(of_keys(history, range(3, 4)))).failures == ["duplicate"]
