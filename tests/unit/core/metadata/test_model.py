from dataclasses import replace

import pytest

from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    ProducerId,
    TopicId,
)
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    ClusterState,
    Listener,
    PartitionState,
    SideAddresses,
    StateShard,
    Topic,
    next_cluster,
    next_shard,
    shard_of,
)
from millrace.core.topics import TopicName

A, B = BrokerId(0), BrokerId(1)
A1, A2, B1 = (
    BrokerLife(A, BrokerEpoch(1)),
    BrokerLife(A, BrokerEpoch(2)),
    BrokerLife(B, BrokerEpoch(1)),
)
EPOCH = ControllerEpoch(3)


def partition(
    leader: BrokerId = A,
    leader_epoch: int = 5,
    partition_epoch: int = 9,
    isr: tuple[BrokerLife, ...] = (A1, B1),
) -> PartitionState:
    return PartitionState(
        replicas=(A, B),
        leader=leader,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        isr=isr,
    )


def topic(*partitions: PartitionState, topic_id: bytes = bytes(16)) -> Topic:
    return Topic(topic_id=TopicId(topic_id), name=TopicName("default", "t"), partitions=partitions)


def shard(*topics: Topic, controller_epoch: int = 3) -> StateShard:
    return StateShard(
        number=0,
        version=4,
        controller_epoch=ControllerEpoch(controller_epoch),
        topics={each.topic_id: each for each in topics},
    )


@pytest.mark.parametrize(
    ("leader", "isr", "leader_epoch"),
    [
        (A, (A1,), 5),  # A follower fell out of the ISR: the leader stays what it was.
        (B, (A1, B1), 6),
        (NO_BROKER, (A1, B1), 6),
        (A, (A2, B1), 6),  # The same broker in a new life.
    ],
)
def test_the_leader_epoch_grows_iff_the_leader_or_its_life_changes(
    leader: BrokerId, isr: tuple[BrokerLife, ...], leader_epoch: int
) -> None:
    after = partition().successor(leader=leader, isr=isr)
    assert (after.leader_epoch, after.partition_epoch) == (leader_epoch, 10)


def test_the_leader_epoch_grows_with_the_replica_set_but_not_with_its_order() -> None:
    before = partition()
    same = before.successor(leader=A, isr=(A1, B1), replicas=(B, A))
    fewer = before.successor(leader=A, isr=(A1,), replicas=(A,))
    assert (same.leader_epoch, fewer.leader_epoch) == (5, 6)


def test_a_state_that_cannot_be_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no partition"):
        partition(leader=B, isr=(A1,))


def test_a_shard_follows_with_the_next_version_and_the_writer_s_epoch() -> None:
    before = shard(topic(partition()))
    after = next_shard(before, before.topics, {}, {}, ControllerEpoch(7))
    assert (after.version, after.controller_epoch) == (5, 7)
    assert after.topics == before.topics


@pytest.mark.parametrize(
    "after",
    [
        partition(leader_epoch=4, partition_epoch=10),
        partition(leader_epoch=6, partition_epoch=9),
        partition(leader_epoch=6, partition_epoch=8),
        partition(leader=B, leader_epoch=5, partition_epoch=10),
        partition(isr=(A2, B1), partition_epoch=10),
    ],
    ids=[
        "leader epoch back",
        "changed in the same partition epoch",
        "partition epoch back",
        "another leader in the same epoch",
        "another life in the same epoch",
    ],
)
def test_epochs_never_go_back(after: PartitionState) -> None:
    before = shard(topic(partition()))
    with pytest.raises(AssertionError):
        next_shard(before, shard(topic(after)).topics, {}, {}, EPOCH)


def test_changes_that_became_one_write_follow_too() -> None:
    before = shard(topic(partition()))
    twice = partition(leader=A, leader_epoch=7, partition_epoch=11)  # To B and back.
    assert next_shard(before, shard(topic(twice)).topics, {}, {}, EPOCH).version == 5


def test_an_older_controller_s_version_cannot_follow() -> None:
    with pytest.raises(AssertionError):
        next_shard(shard(controller_epoch=4), {}, {}, {}, ControllerEpoch(3))


def test_topics_do_not_vanish_shrink_or_change_their_name() -> None:
    before = shard(topic(partition(), partition()))
    with pytest.raises(AssertionError):
        next_shard(before, {}, {}, {}, EPOCH)
    with pytest.raises(AssertionError):
        next_shard(before, shard(topic(partition())).topics, {}, {}, EPOCH)
    renamed = replace(topic(partition(), partition()), name=TopicName("default", "u"))
    with pytest.raises(AssertionError):
        next_shard(before, shard(renamed).topics, {}, {}, EPOCH)
    deleted = next_shard(before, {}, {}, {TopicId(bytes(16)): frozenset({A})}, EPOCH)
    assert not deleted.topics


def registration(broker_epoch: int, name: str = "a") -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=A,
        name=name,
        rack="",
        host="h",
        port=1,
        incarnation_id="i",
        directory_ids=(),
        broker_epoch=BrokerEpoch(broker_epoch),
        is_fenced=False,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cluster_id": "other"},
        {"next_broker_id": BrokerId(0)},
        {"last_broker_epoch": BrokerEpoch(4)},
        {"next_producer_id": ProducerId(999)},
        {"brokers": {A: registration(4)}},
        {"brokers": {A: registration(5, name="b")}},
        {"brokers": {A: registration(5), B: replace(registration(6), broker_id=B)}},
    ],
)
def test_nothing_of_the_cluster_goes_back(change: dict[str, object]) -> None:
    before = ClusterState(
        cluster_id="c",
        version=2,
        controller_epoch=EPOCH,
        brokers={A: registration(5)},
        next_broker_id=BrokerId(2),
        last_broker_epoch=BrokerEpoch(5),
        next_producer_id=ProducerId(1000),
    )
    assert next_cluster(before, before, EPOCH).version == 3
    with pytest.raises(AssertionError):
        next_cluster(before, replace(before, **change), EPOCH)  # type: ignore[arg-type]


def test_a_broker_may_be_unregistered_and_new_ones_get_new_ids() -> None:
    before = ClusterState(cluster_id="c", brokers={A: registration(5)}, next_broker_id=BrokerId(2))
    new = replace(registration(6, name="b"), broker_id=BrokerId(2))
    after = replace(before, brokers={BrokerId(2): new}, next_broker_id=BrokerId(3))
    assert next_cluster(before, after, EPOCH).brokers.keys() == {2}


def test_topics_spread_over_all_shards() -> None:
    ids = [TopicId(number.to_bytes(4, "big") + bytes(12)) for number in range(64)]
    assert sorted(map(shard_of, ids)) == sorted([*range(32), *range(32)])


@pytest.mark.parametrize(("host", "address"), [("h", "h:1"), ("::1", "[::1]:1")])
def test_an_address_is_host_and_port(host: str, address: str) -> None:
    assert replace(registration(1), host=host).address == address
    fetched_from = replace(registration(1), replica_host=host, replica_port=1)
    assert fetched_from.replica_address == address
    assert replace(fetched_from, replica_port=0).replica_address == ""


SIDES = (Listener.CLIENTS, Listener.OUTSIDE, Listener.BROKERS)


def test_a_broker_has_an_address_by_drpc_for_each_side() -> None:
    broker = replace(registration(1), drpc_addresses=SideAddresses("c:1", "o:2", "b:3"))
    assert [broker.drpc_address_at(side) for side in SIDES] == ["c:1", "o:2", "b:3"]
    assert [registration(1).drpc_address_at(side) for side in SIDES] == ["", "", ""]


PLAIN = SideAddresses()
BOTH = SideAddresses("h:11", "o:12", "r:13")
ALONE = SideAddresses("h:1", "o:2", "r:3")


@pytest.mark.parametrize(
    ("by_tls", "plain_callers", "tls_callers"),
    [
        (PLAIN, ["h:1", "o:2", "d:4", "d:5"], ["", "", "", ""]),
        (BOTH, ["h:1", "o:2", "d:4", "d:5"], ["h:11", "o:12", "", ""]),
        (ALONE, ["", "", "", ""], ["h:1", "o:2", "d:4", "d:5"]),
    ],
)
def test_callers_are_told_addresses_that_speak_what_they_do(
    by_tls: SideAddresses, plain_callers: list[str], tls_callers: list[str]
) -> None:
    """G4: of a broker without TLS, with both, and with TLS alone."""
    broker = replace(
        registration(1),
        host="h",
        port=1,
        outside_address="o:2",
        replica_host="r",
        replica_port=3,
        drpc_addresses=SideAddresses("d:4", "d:5", "d:6"),
        tls_addresses=by_tls,
    )
    for sides, told in (
        ((Listener.CLIENTS, Listener.OUTSIDE), plain_callers),
        ((Listener.CLIENTS_TLS, Listener.OUTSIDE_TLS), tls_callers),
    ):
        found = [broker.address_at(side) for side in sides]
        assert found + [broker.drpc_address_at(side) for side in sides] == told
