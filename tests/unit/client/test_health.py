"""What counts as wrong with a cluster."""

from collections.abc import Sequence
from dataclasses import replace

from millrace.client import (
    BrokerInfo,
    ClusterDescription,
    ClusterHealth,
    ConfigValue,
    DamagedReplica,
    PartitionDescription,
    TopicDescription,
)
from millrace.client._admin.health import PartitionHealth, ReplicationDefaults, health_of
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
)
from millrace.core.media import Media


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def judged(
    isr: Sequence[int],
    *,
    leader: int = 0,
    replicas: Sequence[int] = (0, 1, 2),
    min_isr: str = "-1",
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    controller: int = 0,
    is_recovering: bool = False,
    damaged: Sequence[DamagedReplica] = (),
    full: int = -1,
    defaults: ReplicationDefaults | None = None,
    drained: int = -1,
    is_internal: bool = False,
    media: str = "any",
    told_media: bool = True,
) -> ClusterHealth:
    """Judge a cluster of one partition."""
    partition = PartitionDescription(
        0,
        BrokerId(leader),
        LeaderEpoch(1),
        "",
        PartitionEpoch(1),
        ids(*replicas),
        ids(*isr),
        (),
        (),
        ids(*adding),
        ids(*removing),
        is_recovering,
    )
    config = {
        "min.insync.replicas": ConfigValue(min_isr, "topic", ""),
        "media": ConfigValue(media, "topic", ""),
    }
    topic = TopicDescription("t", TopicId(b"t" * 16), is_internal, (partition,), config)
    brokers = tuple(
        BrokerInfo(
            BrokerId(n),
            f"b{n}",
            "h:1",
            "",
            n == 2,
            BrokerEpoch(n),
            is_drained=n == drained,
            reluctance="full disk" if n == full else "",
            media=(
                (Media.SSD, Media.HDD) if not n else (Media.SSD,) if n == 1 or told_media else ()
            ),
        )
        for n in range(3)
    )
    cluster = ClusterDescription("c", BrokerId(controller), ControllerEpoch(1), brokers)
    return health_of(cluster, [topic], damaged, defaults)


def test_all_replicas_in_sync_is_healthy_whatever_broker_is_gone() -> None:
    health = judged((0, 1), replicas=(0, 1))
    assert health.is_healthy
    assert health.fenced_brokers == (2,)
    assert health.usable_brokers == (0, 1)


def test_a_controller_that_cannot_act_is_none() -> None:
    problem = "the coordination store was set back"
    cluster = ClusterDescription(
        "c", BrokerId(0), ControllerEpoch(1), (), controller_problem=problem
    )
    health = health_of(cluster, [], ())
    assert not health.is_healthy
    assert not health.has_controller
    assert health.controller_problem == problem


def test_a_missing_replica_is_named() -> None:
    health = judged((0, 1))
    assert not health.is_healthy
    (found,) = health.under_replicated
    assert found.missing == (2,)
    assert health.under_min_isr == health.offline == ()


def test_below_min_isr_by_default_is_fewer_than_all_but_one() -> None:
    (found,) = judged((0,)).under_min_isr
    assert found.min_insync_replicas == 2


def test_min_isr_is_never_more_than_there_are_replicas() -> None:
    assert judged((0, 1), replicas=(0, 1), min_isr="3").is_healthy
    assert judged((0, 1, 2), min_isr="3").is_healthy
    assert judged((0, 1), min_isr="3").under_min_isr


def test_a_partition_that_nobody_leads_is_offline() -> None:
    (found,) = judged((), leader=-1).offline
    assert found.leader == -1


def test_replicas_that_come_or_go_are_not_missed() -> None:
    health = judged((0, 1), replicas=(3, 1, 0), adding=(3,), removing=(0,))
    assert health.is_healthy


def test_a_full_disk_is_no_illness_where_others_lead_and_one_where_nobody_else_can() -> None:
    assert judged((0, 1), replicas=(0, 1), full=1).is_healthy
    health = judged((0, 1), replicas=(0, 1), full=0)
    assert not health.is_healthy
    assert [found.leader for found in health.badly_led] == [0]


def test_without_a_controller_and_while_a_loss_is_not_settled_it_is_not_healthy() -> None:
    assert not judged((0, 1, 2), controller=-1).is_healthy
    health = judged((0, 1, 2), is_recovering=True)
    assert not health.is_healthy
    assert health.recovering


def test_a_replica_that_is_offline_is_a_problem_and_one_that_was_fetched_anew_is_none() -> None:
    offline = DamagedReplica("t", 0, BrokerId(1), "damaged", ())
    renewed = DamagedReplica("t", 0, BrokerId(1), "", ("/data/t.1.damaged",))
    assert not judged((0, 1, 2), damaged=[offline]).is_healthy
    health = judged((0, 1, 2), damaged=[renewed])
    assert health.is_healthy
    assert health.damaged == (renewed,)


def test_the_problems_of_a_topic_are_counted_the_worst_first() -> None:
    def partitions(topic: str, *numbers: int) -> tuple[PartitionHealth, ...]:
        (judged_one,) = judged([0, 1]).under_replicated
        return tuple(replace(judged_one, topic=topic, partition=number) for number in numbers)

    health = replace(
        judged([0, 1, 2]),
        offline=partitions("a", 7),
        under_replicated=partitions("b", 0) + partitions("a", 0, 3, 7),
    )
    assert health.problems_by_topic == {
        "a": "1 offline, 2 under-replicated",
        "b": "1 under-replicated",
    }
    assert judged([0, 1, 2]).problems_by_topic == {}


def test_what_is_wrong_is_said_in_words_and_each_partition_once() -> None:
    assert judged([0, 1, 2]).problems == ["down: broker 2"]  # Healthy all the same.
    assert judged([0, 1]).problems == [
        "down: broker 2",
        "1 partition under-replicated, not all replicas are in sync: t-0",
    ]
    offline = judged([0], leader=-1, min_isr="2", controller=-1)
    assert offline.problems == [
        "no controller: nothing is elected or changed until a broker is one",
        "down: broker 2",
        "1 partition offline, can neither be written nor read: t-0",
    ]
    assert list(offline.partitions_by_problem) == ["offline"]
    assert offline.problems_by_topic == {"t": "1 offline"}
    assert offline.under_min_isr


USUAL = ReplicationDefaults(topics=-1, positions=-1, transactions=-1)


def test_fewer_replicas_than_by_default_are_named_and_no_illness() -> None:
    health = judged([0], replicas=[0], defaults=USUAL)
    assert health.is_healthy  # Somebody may have wanted it so.
    (found,) = health.few_replicas
    assert (found.topic, found.partition, found.replicas_wanted) == ("t", 0, 3)
    assert health.problems == [
        "down: broker 2",
        "1 partition with few replicas, fewer than a topic gets by default now: t-0",
    ]
    assert not judged([0, 1, 2], defaults=USUAL).few_replicas
    assert not judged([0], replicas=[0]).few_replicas


def test_replicas_that_are_on_their_way_are_not_few_and_those_that_go_do_not_count() -> None:
    assert not judged([0], replicas=[0, 1, 2], adding=[1, 2], defaults=USUAL).few_replicas
    assert judged([0, 1, 2], removing=[1, 2], defaults=USUAL).few_replicas


def test_a_broker_that_is_down_counts_for_the_default_and_a_drained_one_does_not() -> None:
    assert judged([0, 1], replicas=[0, 1], defaults=USUAL).few_replicas
    assert not judged([0, 1], replicas=[0, 1], drained=2, defaults=USUAL).few_replicas


def test_a_broker_that_has_not_told_its_media_yet_counts_as_it_does_for_the_controller() -> None:
    assert not judged([0], replicas=[0], media="hdd", defaults=USUAL).few_replicas
    (found,) = judged([0], replicas=[0], media="hdd", told_media=False, defaults=USUAL).few_replicas
    assert found.replicas_wanted == 2


def test_the_default_is_that_of_the_setting_as_far_as_brokers_have_the_media() -> None:
    two = ReplicationDefaults(topics=2, positions=9, transactions=1)
    assert not judged([0, 1], replicas=[0, 1], defaults=two).few_replicas
    (found,) = judged([0, 1], replicas=[0, 1], is_internal=True, defaults=two).few_replicas
    assert found.replicas_wanted == 3
    assert not judged([0], replicas=[0], media="hdd", defaults=two).few_replicas
