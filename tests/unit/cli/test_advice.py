"""What to do about an unhealthy cluster is said with the commands that do it."""

from collections.abc import Sequence

from millrace.cli.advice import advice
from millrace.client import BrokerInfo, ClusterHealth, PartitionHealth
from millrace.core.ids import BrokerId


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def lacking(*missing: int, leader: int = 0, isr: Sequence[int] = ()) -> PartitionHealth:
    return PartitionHealth("orders", 3, BrokerId(leader), ids(*isr), ids(*missing), 2)


def health(
    *,
    offline: Sequence[PartitionHealth] = (),
    under_replicated: Sequence[PartitionHealth] = (),
    recovering: Sequence[PartitionHealth] = (),
    fenced: Sequence[int] = (),
    badly_led: Sequence[PartitionHealth] = (),
    unreachable: Sequence[int] = (),
    has_controller: bool = True,
    reluctant: Sequence[BrokerInfo] = (),
    usable: Sequence[int] = (0, 1, 3),
    few: Sequence[PartitionHealth] = (),
) -> ClusterHealth:
    return ClusterHealth(
        has_controller,
        tuple(offline),
        (),
        tuple(recovering),
        tuple(under_replicated),
        ids(*fenced),
        tuple(badly_led),
        unreachable_brokers=ids(*unreachable),
        reluctant_brokers=tuple(reluctant),
        usable_brokers=ids(*usable),
        few_replicas=tuple(few),
    )


def test_where_nothing_is_wrong_there_is_nothing_to_do() -> None:
    assert advice(health()) == []


def test_partitions_that_nobody_leads_come_back_with_their_brokers_or_without_records() -> None:
    partition = lacking(1, 2, leader=-1)
    first, second = advice(health(offline=[partition], under_replicated=[partition], fenced=[1, 2]))
    assert "start broker 1, 2" in first
    assert "millrace elect-leaders --unclean orders:3" in first
    assert "broker 1, 2: not there" in second


def test_where_nobody_leads_though_all_brokers_are_there_a_disk_is_missing() -> None:
    partition = lacking(1, leader=-1)
    (line,) = advice(health(offline=[partition], under_replicated=[partition]))
    assert "the log of broker 1 says why" in line
    assert line.index("Put it back") < line.index("elect-leaders --unclean orders:3")


def test_a_broker_that_is_not_there_is_started_or_done_without() -> None:
    (line,) = advice(health(under_replicated=[lacking(2)], fenced=[2]))
    assert "cluster drain 2`, `millrace reassign plan --remove-broker 2 | millrace reassign" in line
    assert "millrace cluster unregister 2" in line


def test_where_too_few_brokers_would_be_left_another_one_comes_first() -> None:
    partition = lacking(2, isr=[0, 1])
    (line,) = advice(health(under_replicated=[partition], fenced=[2], usable=[0, 1]))
    assert "start another broker first" in line
    assert "--replication-factor-max 2" in line
    assert "millrace cluster unregister 2" in line
    (line,) = advice(health(under_replicated=[partition], fenced=[2], usable=[0, 1, 3]))
    assert "--replication-factor" not in line


def test_a_broker_that_does_not_answer_has_just_gone_or_is_out_of_reach() -> None:
    (line,) = advice(health(unreachable=[2]))
    assert line.startswith("broker 2: no answer here")


def test_a_broker_that_is_there_only_lags() -> None:
    (line,) = advice(health(under_replicated=[lacking(1)]))
    assert line.startswith("broker 1: there, and not in sync yet")
    assert "millrace topic describe orders" in line


def test_a_broker_with_a_bad_disk_leads_less_until_somebody_looks_at_it() -> None:
    def broker(number: int, reluctance: str) -> BrokerInfo:
        return BrokerInfo(BrokerId(number), "b", "h:1", "", False, reluctance=reluctance)

    found = health(reluctant=[broker(0, "slow disk"), broker(2, "full disk"), broker(1, "new")])
    full, new, slow = advice(found)
    assert full.startswith("broker 2: full disk: ")
    assert "Lower the retention" in full
    assert "`.deleted`" in full
    assert new.endswith("Its log says more")
    assert slow.startswith("broker 0: slow disk: ")
    assert found.is_healthy
    assert broker(0, "slow disk").state == "slow disk"

    found = health(reluctant=[broker(0, "full disk")], badly_led=[lacking(leader=0)])
    (line,) = advice(found)
    assert "but 1 partition that no other can lead" in line
    assert not found.is_healthy


def test_without_a_controller_and_while_recovering_one_can_only_wait() -> None:
    first, last = advice(health(recovering=[lacking()], has_controller=False))
    assert "no controller" in first
    assert "orders-3" in last


def test_partitions_with_few_replicas_are_named_with_what_gives_them_more() -> None:
    few = PartitionHealth("orders", 3, BrokerId(0), ids(0), (), 1, replicas_wanted=3)
    found = health(few=[few])
    (line,) = advice(found)
    assert "few replicas: orders-3: fewer than a topic gets by default now" in line
    assert "reassign plan orders --replication-factor 3 | millrace reassign apply -" in line
    assert found.is_healthy
