from collections.abc import Sequence
from typing import get_args

import pytest
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.controller.controller import Phase
from millrace.core.controller.effects import (
    PublishImage,
    ReadObject,
    Resigned,
    Respond,
    WriteObject,
)
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    DeletionProtectedError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
    ReassignmentReason,
    ReassignmentRefusedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    TOPIC_ID_BYTES,
    BrokerId,
    MonotonicMs,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    BrokerRegistration,
    Listener,
    Topic,
    shard_of,
)
from millrace.core.metadata.objects.store_versions import StoreVersions
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterPartition,
    AlterPartitions,
    AlterTopics,
    ConfirmDeletions,
    CreatePositionsTopic,
    CreateTopics,
    CreateTransactionsTopic,
    DeleteQuotas,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    Heartbeat,
    NewTopic,
    PurgeTopics,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    RenewReplicas,
    Request,
    SetQuotas,
    TopicChange,
    TopicRef,
    UndeleteTopics,
    UnregisterBroker,
)
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.core.topics import TopicName

NOW = MonotonicMs(0)


def topic_id(shard: int, number: int = 0) -> TopicId:
    """An id that falls to a shard."""
    return TopicId(shard.to_bytes(4, "big") + number.to_bytes(12, "big"))


def register(
    name: str = "a",
    incarnation: str = "1",
    directories: Sequence[str] = ("d-a",),
    broker_id: int | None = None,
    rack: str = "",
) -> RegisterBroker:
    return RegisterBroker(
        name=name,
        rack=rack,
        host="h",
        port=7092,
        incarnation_id=incarnation,
        directory_ids=directories,
        broker_id=None if broker_id is None else BrokerId(broker_id),
    )


def create(
    name: str,
    shard: int = 0,
    *,
    partitions: int = 0,
    replication_factor: int = 0,
    config: dict[str, str] | None = None,
    validate_only: bool = False,
) -> CreateTopics:
    new = NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        config=config or {},
    )
    ids = [topic_id(shard, len(name))]
    return CreateTopics(topics=[new], topic_ids=ids, validate_only=validate_only)


def alter(name: str, validate_only: bool = False, **change: object) -> AlterTopics:
    asked = TopicChange(topic=TopicRef(name=name), **change)  # type: ignore[arg-type]
    return AlterTopics(changes=[asked], validate_only=validate_only)


def delete(name: str, **options: bool) -> DeleteTopics:
    return DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name=name)], **options)


def only(result: object) -> object:
    assert isinstance(result, list)
    assert len(result) == 1
    return result[0]


def the_topic(result: object) -> Topic:
    topic = only(result)
    assert isinstance(topic, Topic), topic
    return topic


def the_broker(result: object) -> BrokerRegistration:
    assert isinstance(result, BrokerRegistration), result
    return result


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def driver(objects: Objects) -> ControllerDriver:
    """An active controller with one broker."""
    driver = ControllerDriver(objects).take_over()
    driver.start_broker(register())
    return driver


# Taking over.


def test_a_new_cluster_is_claimed_object_by_object_before_any_request(objects: Objects) -> None:
    driver = ControllerDriver(objects)
    assert driver.perform(driver.machine.take_over()) == [ReadObject(key) for key in SHARD_KEYS]
    (last,) = [effect for _ in SHARD_KEYS for effect in driver.read()]
    assert last == ReadObject(CLUSTER_KEY)
    (claim,) = driver.read()
    assert isinstance(claim, WriteObject)
    assert (claim.key, claim.stored.version, claim.stored.controller_epoch) == (CLUSTER_KEY, 1, 1)
    assert driver.write() == [ReadObject(key) for key in SHARD_KEYS]
    driver.settle()
    assert driver.machine.phase is Phase.ACTIVE
    assert len(driver.images) == 1
    assert driver.image.cluster.cluster_id == "new"
    assert driver.image.epoch == 33
    assert [objects[key].version for key in (CLUSTER_KEY, *SHARD_KEYS)] == [1] * 33


def test_requests_are_refused_before_the_last_object_is_claimed(objects: Objects) -> None:
    driver = ControllerDriver(objects)
    driver.perform(driver.machine.take_over())
    while driver.machine.phase is not Phase.ACTIVE:
        error = driver.results[driver.send(create("t"))]
        assert isinstance(error, NotControllerError)
        assert error.appended is Appended.NO
        driver.read() if driver.reads else driver.write()


def test_a_successor_has_a_higher_epoch_and_the_same_topics(
    objects: Objects, driver: ControllerDriver
) -> None:
    driver.ask(create("t", 3, partitions=2))
    successor = ControllerDriver(objects).take_over()
    assert successor.image.cluster.controller_epoch == 2
    assert successor.image.cluster.cluster_id == "new"
    assert successor.image.topics == driver.image.topics
    assert successor.image.epoch > driver.image.epoch


def test_a_predecessor_finds_out_at_its_next_write_and_changes_nothing(
    objects: Objects, driver: ControllerDriver
) -> None:
    successor = ControllerDriver(objects).take_over()
    request_id = driver.send(create("t"))
    driver.settle()
    error = driver.results[request_id]
    assert isinstance(error, NotControllerError)
    assert error.appended is Appended.MAYBE
    assert driver.resigned == "'shards/00' was written by another controller"
    successor.ask(register())
    assert not successor.image.topics
    assert ControllerDriver(objects).take_over().image.topics == {}


def test_a_predecessors_write_between_the_read_and_the_claim_is_kept(
    objects: Objects, driver: ControllerDriver
) -> None:
    successor = ControllerDriver(objects)
    successor.perform(successor.machine.take_over())
    while successor.reads:
        successor.read()
    successor.write()
    while successor.reads:
        successor.read()
    created = the_topic(driver.ask(create("t", 5)))
    successor.settle()
    assert successor.machine.phase is Phase.ACTIVE
    assert successor.image.topics == {created.name: created}
    assert objects[SHARD_KEYS[5]].controller_epoch == 2


def test_of_two_that_take_over_at_once_the_later_epoch_wins(objects: Objects) -> None:
    first, second = ControllerDriver(objects), ControllerDriver(objects)
    for each in (first, second):
        each.perform(each.machine.take_over())
        while each.reads:
            each.read()
    first.write()
    second.write()  # Refused: it reads again, and claims with a higher epoch.
    second.read()
    second.write()
    while second.reads or second.writes:
        for each in (first, second):
            if each.reads:
                each.read()
            elif each.writes:
                each.write()
    assert second.machine.phase is Phase.ACTIVE
    assert second.image.cluster.controller_epoch == 2
    first.ask(register())
    assert first.resigned is not None


def test_an_empty_store_for_log_directories_of_a_cluster_is_refused(objects: Objects) -> None:
    driver = ControllerDriver(objects, known_cluster_id="old")
    with pytest.raises(InvalidConfigError, match="the store was lost"):
        driver.take_over()
    assert not objects


def test_the_store_of_another_cluster_is_refused(
    objects: Objects, driver: ControllerDriver
) -> None:
    before = dict(objects)
    stranger = ControllerDriver(objects, known_cluster_id="other")
    with pytest.raises(InvalidConfigError, match="belongs to the cluster new"):
        stranger.take_over()
    assert objects == before


def test_a_damaged_object_stops_the_take_over(objects: Objects, driver: ControllerDriver) -> None:
    key = SHARD_KEYS[7]
    whole = objects[key]
    objects[key] = StoredObject(whole.value[:-2], whole.version, whole.controller_epoch)
    successor = ControllerDriver(objects)
    with pytest.raises(CorruptMetadataError, match="shards/07"):
        successor.take_over()


def test_a_shard_that_is_missing_is_not_begun_anew_in_a_cluster_that_has_brokers(
    objects: Objects, driver: ControllerDriver
) -> None:
    driver.ask(create("t", 7))
    del objects[SHARD_KEYS[7]]
    successor = ControllerDriver(objects)
    with pytest.raises(CorruptMetadataError, match=r"shards/07.* is missing"):
        successor.take_over()
    assert SHARD_KEYS[7] not in objects


def test_a_take_over_that_broke_off_in_a_new_cluster_is_gone_on_with(objects: Objects) -> None:
    first = ControllerDriver(objects)
    first.perform(first.machine.take_over())
    while SHARD_KEYS[3] not in objects:
        first.read() if first.reads else first.write()
    successor = ControllerDriver(objects).take_over()
    assert successor.machine.phase is Phase.ACTIVE
    assert the_broker(successor.ask(register())).name == "a"


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_cluster_state_that_was_lost_or_set_back_alone_is_not_gone_on_from(
    objects: Objects, driver: ControllerDriver, is_gone: bool
) -> None:
    """Nothing is written, so that nobody overtakes what was lost by trying again."""
    old = objects[CLUSTER_KEY]
    driver = ControllerDriver(objects).take_over()
    driver.ask(create("t", 7))
    objects.pop(CLUSTER_KEY) if is_gone else objects.update({CLUSTER_KEY: old})
    before = dict(objects)
    for _ in range(3):
        newcomer = ControllerDriver(objects)
        with pytest.raises(CorruptMetadataError, match="'cluster' was lost or set back"):
            newcomer.take_over()
        assert objects == before


def test_a_store_that_was_set_back_is_not_gone_on_from(
    objects: Objects, driver: ControllerDriver
) -> None:
    """To an earlier controller, and to an earlier state of the same one (F41, F45)."""
    earlier = dict(objects)
    successor = ControllerDriver(objects).take_over()
    at_take_over = dict(objects)
    successor.ask(create("t", 7))
    seen = StoreVersions.of(objects)
    for backup in (earlier, at_take_over):
        objects.clear()
        objects.update(backup)
        for _ in range(3):
            newcomer = ControllerDriver(objects, known_cluster_id="new", seen=seen)
            with pytest.raises(CorruptMetadataError, match=r"set back.* Restore its newest state"):
                newcomer.take_over()
            assert objects == backup


def test_objects_that_are_gone_are_missed_also_by_a_cluster_without_brokers(
    objects: Objects,
) -> None:
    ControllerDriver(objects).take_over()
    seen = StoreVersions.of(objects)
    del objects[SHARD_KEYS[3]]
    with pytest.raises(CorruptMetadataError, match=r"'shards/03' is gone, and had version 1"):
        ControllerDriver(objects, seen=seen).take_over()
    assert SHARD_KEYS[3] not in objects


def test_the_newest_state_is_gone_on_from_whoever_remembers_what(
    objects: Objects, driver: ControllerDriver
) -> None:
    for name in ("t", "tt", "ttt"):
        seen = StoreVersions.of(objects)
        driver = ControllerDriver(objects, known_cluster_id="new", seen=seen).take_over()
        assert driver.machine.on_seen_elsewhere(seen) == []
        driver.ask(create(name))
    assert len(driver.image.topics) == 3


def test_a_controller_that_knows_less_than_a_broker_has_seen_resigns_and_keeps_it_in_mind(
    objects: Objects, driver: ControllerDriver
) -> None:
    """Its directories were new, so it did not know that the store was set back."""
    backup = dict(objects)
    driver.ask(create("t", 7))
    seen = StoreVersions.of(objects)
    objects.clear()
    objects.update(backup)
    ignorant = ControllerDriver(objects).take_over()
    ignorant.perform(ignorant.machine.on_seen_elsewhere(seen))
    assert ignorant.machine.phase is Phase.RESIGNED
    before = dict(objects)
    next_one = ControllerDriver(objects, seen=ignorant.machine.seen)
    with pytest.raises(CorruptMetadataError, match="set back"):
        next_one.take_over()
    assert objects == before


def test_a_controller_that_was_only_replaced_may_take_over_again(
    objects: Objects, driver: ControllerDriver
) -> None:
    ControllerDriver(objects).take_over()
    driver.perform(driver.machine.on_seen_elsewhere(StoreVersions.of(objects)))
    assert driver.machine.phase is Phase.RESIGNED
    again = ControllerDriver(objects, seen=driver.machine.seen).take_over()
    assert again.image.cluster.controller_epoch == 3


# Brokers.


def test_a_broker_gets_an_id_for_its_name_and_an_epoch_for_its_life(
    objects: Objects,
) -> None:
    driver = ControllerDriver(objects).take_over()
    first = driver.start_broker(register())
    assert (first.broker_id, first.broker_epoch, first.is_fenced) == (0, 1, False)
    driver.kill(first.broker_id)
    again = driver.start_broker(register(incarnation="2", broker_id=0))
    assert (again.broker_id, again.broker_epoch) == (0, 2)
    other = driver.start_broker(register("b", directories=["d-b"]))
    assert (other.broker_id, other.broker_epoch) == (1, 3)
    assert driver.image.cluster.brokers == {0: again, 1: other}


def test_a_retried_registration_is_the_same_life(driver: ControllerDriver) -> None:
    first = driver.image.cluster.brokers[BrokerId(0)]
    assert driver.ask(register()) == first
    assert driver.image.cluster.last_broker_epoch == 1
    assert driver.live() == [first.life]


def test_a_starting_broker_leads_its_partitions_in_a_new_epoch(driver: ControllerDriver) -> None:
    created = the_topic(driver.ask(create("t", partitions=2)))
    assert [partition.leader_epoch for partition in created.partitions] == [0, 0]
    driver.kill(BrokerId(0))
    broker = driver.start_broker(register(incarnation="2"))
    for number in range(2):
        state = driver.image.partition(TopicPartition(created.topic_id, number))
        assert state is not None
        # Fenced, taken over into the new life, and elected.
        assert (state.leader, state.leader_epoch, state.partition_epoch) == (0, 2, 3)
        assert state.isr == (broker.life,)
        assert driver.image.leader_address(state, Listener.CLIENTS) == "h:7092"
        assert driver.image.leader_address(state, Listener.OUTSIDE) == ""


def test_a_broker_that_outlives_a_controller_keeps_its_leader_epochs(
    objects: Objects, driver: ControllerDriver
) -> None:
    created = the_topic(driver.ask(create("t")))
    broker = driver.image.cluster.brokers[BrokerId(0)]
    successor = ControllerDriver(objects).take_over()
    assert successor.live() == [broker.life]
    successor.tick()
    assert not successor.beat(broker.life).is_fenced
    assert successor.ask(register()) == broker
    successor.pass_time(10_000)
    assert successor.image.topics_by_id[created.topic_id] == created


def test_a_life_is_granted_only_when_the_last_one_is_out_of_every_stored_partition(
    driver: ControllerDriver,
) -> None:
    """P37: two phases."""
    driver.ask(create("t", 4))
    driver.ask(create("uu", 9))
    driver.ask(create("vvv", 9))
    driver.kill(BrokerId(0))
    request_id = driver.send(register(incarnation="2"))
    keys = [write.key for write in driver.writes]
    assert sorted(keys) == [CLUSTER_KEY, "shards/04", "shards/09"]
    for _ in keys:
        assert request_id not in driver.results
        assert driver.image.cluster.brokers[BrokerId(0)].broker_epoch == 1
        driver.write()
    assert [write.key for write in driver.writes] == [CLUSTER_KEY]
    assert request_id not in driver.results
    driver.write()
    granted = the_broker(driver.results[request_id])
    assert (granted.broker_epoch, granted.is_fenced) == (2, True)


def test_a_life_is_granted_only_when_what_took_the_last_one_out_is_stored(
    driver: ControllerDriver,
) -> None:
    """Its session had ended, and the elections were decided on, but not stored yet."""
    driver.start_broker(register("b", directories=["d-b"]))
    driver.ask(create("t", 4))
    life = driver.image.cluster.brokers[BrokerId(0)].life
    driver.perform(driver.machine.on_connection_broken(life, MonotonicMs(driver.now)))
    driver.now += ClusterConfig().broker_reconnect_grace_ms
    driver.perform(driver.machine.tick(MonotonicMs(driver.now)))
    assert sorted(write.key for write in driver.writes) == [CLUSTER_KEY, "shards/04"]
    request_id = driver.send(register(incarnation="2"))
    while request_id not in driver.results:
        # The cluster's object is quick, and the shard's slow.
        driver.writes.sort(key=lambda write: write.key != CLUSTER_KEY)
        driver.write()
    assert the_broker(driver.results[request_id]).life != life
    (state,) = driver.image.topics[TopicName("default", "t")].partitions
    assert life not in state.isr


def test_directories_of_another_broker_are_refused(driver: ControllerDriver) -> None:
    for request, message in [
        (register("b", directories=["d-a", "d-b"]), "also one of broker 'a'"),
        (register("b", directories=["d-b"], broker_id=0), "is named 'a'"),
        (register("b", directories=["d-b"], broker_id=7), "the cluster does not know"),
        (register("a", directories=["d-a"], broker_id=7), "the cluster does not know"),
    ]:
        error = driver.ask(request)
        assert isinstance(error, InvalidConfigError)
        assert message in error.message
    assert list(driver.image.cluster.brokers) == [0]


# Topics.


def test_a_topic_is_created_with_the_clusters_defaults(driver: ControllerDriver) -> None:
    topic = the_topic(driver.ask(create("t")))
    assert topic.name == TopicName("default", "t")
    assert topic.overrides == {}
    (partition,) = topic.partitions
    assert (partition.replicas, partition.leader) == ((0,), 0)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert driver.image.topics == {topic.name: topic}


def test_the_default_replication_is_three_or_the_number_of_brokers(objects: Objects) -> None:
    driver = ControllerDriver(objects).take_over()
    for number, expected in [(1, 1), (2, 2), (3, 3), (4, 3)]:
        driver.start_broker(register(f"b{number}", directories=[f"d{number}"]))
        topic = the_topic(driver.ask(create("t" * number)))
        assert topic.replication_factor == expected
        assert len(topic.partitions[0].isr) == expected


def test_settings_are_kept_in_canonical_form(driver: ControllerDriver) -> None:
    config = {"retention.ms": "1h", "durability": "replicated"}
    topic = the_topic(driver.ask(create("t", config=config)))
    assert topic.overrides == {"durability": "replicated", "retention.ms": "3600000"}
    assert topic.config.retention_ms == 3_600_000


REFUSED = [
    (create("no spaces"), InvalidTopicError, "must be 1 to 249"),
    (create("__offsets"), InvalidTopicError, "belong to the cluster"),
    (create("shop/__x"), InvalidTopicError, "belong to the cluster"),
    (create("there"), TopicAlreadyExistsError, "exists"),
    (create("t", partitions=11), InvalidPartitionsError, "topic_partitions_max"),
    (create("t", partitions=-1), InvalidPartitionsError, "topic_partitions_max"),
    (create("t", partitions=10), InvalidPartitionsError, "broker_partitions_max"),
    (create("t", replication_factor=2), InvalidReplicationFactorError, "add brokers"),
    (create("t", replication_factor=-1), InvalidReplicationFactorError, "replicas"),
    (create("t", config={"retention.m": "1"}), InvalidConfigError, "did you mean"),
    (create("t", config={"segment.bytes": "1"}), InvalidConfigError, "must be"),
    (alter("nowhere", partitions=2), UnknownTopicOrPartitionError, "nowhere"),
    (alter("there", partitions=1), InvalidPartitionsError, "only grow"),
    (alter("there", partitions=11), InvalidPartitionsError, "topic_partitions_max"),
    (alter("there", partitions=10), InvalidPartitionsError, "broker_partitions_max"),
    (alter("there", set_config={"x": "1"}), InvalidConfigError, "no such setting"),
    (alter("there", unset_config=["retention.m"]), InvalidConfigError, "did you mean"),
    (
        alter("there", set_config={"retention.ms": "1"}, unset_config=["retention.ms"]),
        InvalidConfigError,
        "set and unset",
    ),
    (delete("nowhere"), UnknownTopicOrPartitionError, "nowhere"),
    (delete("no spaces"), InvalidTopicError, "must be 1 to 249"),
]


@pytest.mark.parametrize(("request_", "error", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(
    objects: Objects, request_: CreateTopics, error: type[MillraceError], message: str
) -> None:
    config = ClusterConfig(topic_partitions_max=10, broker_partitions_max=9)
    driver = ControllerDriver(objects, config).take_over()
    driver.start_broker(register())
    driver.ask(create("there", 1, partitions=2))
    before = dict(objects)
    found = only(driver.ask(request_))
    assert type(found) is error
    assert message in str(found)
    assert objects == before


def test_of_several_topics_each_has_its_own_answer(driver: ControllerDriver) -> None:
    topics = [NewTopic(name=name) for name in ("a", "__b", "a", "c")]
    ids = [topic_id(number) for number in range(1, 5)]
    results = driver.ask(CreateTopics(topics=topics, topic_ids=ids))
    assert isinstance(results, list)
    kinds = [type(result) for result in results]
    assert kinds == [Topic, InvalidTopicError, TopicAlreadyExistsError, Topic]
    assert {str(name) for name in driver.image.topics} == {"a", "c"}


def test_a_request_that_would_hold_up_all_others_is_refused_whole(objects: Objects) -> None:
    config = ClusterConfig(request_topics_max=2, topic_partitions_max=10)
    driver = ControllerDriver(objects, config).take_over()
    driver.start_broker(register())
    ids = [topic_id(number) for number in range(3)]
    many = CreateTopics(topics=[NewTopic(name=f"t{n}") for n in range(3)], topic_ids=ids)
    large = CreateTopics(
        topics=[NewTopic(name=f"t{n}", partitions=6) for n in range(2)], topic_ids=ids[:2]
    )
    for request in (
        many,
        large,
        DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name="t")] * 3),
    ):
        assert isinstance(driver.ask(request), MalformedRequestError)
    assert not driver.image.topics


def test_topics_for_which_the_store_may_come_to_have_no_room_are_refused(objects: Objects) -> None:
    driver = ControllerDriver(objects, ClusterConfig(shard_bytes_max=16 << 10)).take_over()
    for number in range(3):
        driver.start_broker(register(f"{number}", directories=[f"d-{number}"]))
    large = the_topic(driver.ask(create("large", partitions=150, replication_factor=1)))
    for refused in (
        create("another", partitions=100),
        create("another", partitions=100, validate_only=True),
        alter("large", partitions=200),
    ):
        error = only(driver.ask(refused))
        assert isinstance(error, InvalidPartitionsError)
        assert error.appended is Appended.NO
        assert "cluster.shard_bytes_max" in error.message
    everywhere = tuple(map(BrokerId, range(3)))
    wider = [
        Reassignment(topic_id=large.topic_id, partition=number, replicas=everywhere)
        for number in range(150)
    ]
    answers = driver.ask(ReassignPartitions(reassignments=wider))
    assert isinstance(answers, list)
    refusals = [answer for answer in answers if isinstance(answer, ReassignmentRefusedError)]
    assert 0 < len(refusals) < len(wider)
    assert {refusal.reason for refusal in refusals} == {ReassignmentReason.LIMIT_REACHED}
    assert all("cluster.shard_bytes_max" in refusal.message for refusal in refusals)
    assert all(len(stored.value) < 16 << 10 for stored in objects.values())
    the_topic(driver.ask(alter("large")))
    the_topic(driver.ask(create("elsewhere", 1, partitions=100)))
    the_topic(driver.ask(delete("large")))
    the_topic(driver.ask(create("another", partitions=100, replication_factor=1)))


def test_names_that_differ_in_a_dot_and_an_underscore_are_two_topics(
    driver: ControllerDriver,
) -> None:
    the_topic(driver.ask(create("a.b", 1)))
    the_topic(driver.ask(create("a_b", 2)))
    assert len(driver.image.topics) == 2


def test_partitions_only_grow_and_the_old_ones_stay_as_they_are(driver: ControllerDriver) -> None:
    before = the_topic(driver.ask(create("t", partitions=2)))
    after = the_topic(driver.ask(alter("t", partitions=5)))
    assert len(after.partitions) == 5
    assert after.partitions[:2] == before.partitions
    assert the_topic(driver.ask(alter("t", partitions=5))) == after


def test_settings_are_set_and_unset(driver: ControllerDriver) -> None:
    driver.ask(create("t", config={"retention.ms": "1", "segment.ms": "2000"}))
    change = alter("t", set_config={"segment.ms": "3000"}, unset_config=["retention.ms"])
    topic = the_topic(driver.ask(change))
    assert topic.overrides == {"segment.ms": "3000"}
    assert topic.config.retention_ms == 604_800_000


def test_validate_only_answers_as_if_and_changes_nothing(
    objects: Objects, driver: ControllerDriver
) -> None:
    driver.ask(create("there"))
    before = dict(objects)
    assert the_topic(driver.ask(create("t", 1, partitions=3, validate_only=True))).partitions
    altered = the_topic(driver.ask(alter("there", True, partitions=3)))
    assert len(altered.partitions) == 3
    the_topic(driver.ask(delete("there", validate_only=True)))
    assert objects == before
    assert [str(name) for name in driver.image.topics] == ["there"]


def test_a_topic_may_be_named_by_its_id_and_both_must_agree(driver: ControllerDriver) -> None:
    topic = the_topic(driver.ask(create("t")))
    by_id = AlterTopics(changes=[TopicChange(topic=TopicRef(topic_id=topic.topic_id))])
    assert the_topic(driver.ask(by_id)) == topic
    for ref in (
        TopicRef(name="other", topic_id=topic.topic_id),
        TopicRef(name="t", topic_id=topic_id(1)),
        TopicRef(topic_id=topic_id(1)),
        TopicRef(),
    ):
        error = only(driver.ask(DeleteTopics(deleted_at=WallMs(1), topics=[ref])))
        assert isinstance(error, UnknownTopicOrPartitionError)


def test_a_topic_that_is_protected_is_not_deleted(driver: ControllerDriver) -> None:
    topic = the_topic(driver.ask(create("t", config={"deletion.protection": "true"})))
    for ref in (TopicRef(name="t"), TopicRef(topic_id=topic.topic_id)):
        for validate_only in (True, False):
            refused = DeleteTopics(deleted_at=WallMs(1), topics=[ref], validate_only=validate_only)
            error = only(driver.ask(refused))
            assert isinstance(error, DeletionProtectedError)
            assert "millrace topic alter t --set deletion.protection=false" in error.message
    driver.ask(alter("t", set_config={"deletion.protection": "false"}))
    the_topic(driver.ask(delete("t")))
    assert not driver.image.topics


def test_a_topic_made_again_under_its_name_is_another_one(driver: ControllerDriver) -> None:
    first = the_topic(driver.ask(create("t", 1)))
    the_topic(driver.ask(delete("t")))
    second = the_topic(driver.ask(create("t", 2)))
    assert first.topic_id != second.topic_id
    assert driver.image.topics == {second.name: second}
    assert driver.image.topics_by_id == {second.topic_id: second}


def test_a_name_is_free_only_once_the_deletion_is_stored(
    objects: Objects, driver: ControllerDriver
) -> None:
    """P37: its write may be lost, and the other one be done."""
    topic = the_topic(driver.ask(create("t", 1)))
    deletion = driver.send(delete("t"))
    too_soon = driver.send(create("t", 2))
    assert [write.key for write in driver.writes] == ["shards/01"]
    assert driver.results.keys().isdisjoint({deletion, too_soon})
    assert ControllerDriver(Objects(objects)).take_over().image.topics == {topic.name: topic}
    driver.settle()
    assert isinstance(only(driver.results[too_soon]), BrokerBusyError)
    the_topic(driver.ask(create("t", 2)))


def test_a_name_that_was_never_stored_is_not_given_again_sooner(driver: ControllerDriver) -> None:
    driver.send(create("t", 1))
    driver.send(delete("t"))
    refused = driver.send(create("t", 2))
    driver.write()  # The topic; its deletion is in the next write.
    again = driver.send(create("t", 2))
    driver.settle()
    for request_id in (refused, again):
        assert isinstance(only(driver.results[request_id]), BrokerBusyError)
    the_topic(driver.ask(create("t", 2)))
    driver.ask(delete("t"))
    assert driver.image.topics == {}


def test_of_two_topics_of_one_name_each_can_be_deleted(objects: Objects) -> None:
    """As an earlier release could leave them."""
    ControllerDriver(objects).take_over().start_broker(register())
    other = ControllerDriver(Objects(objects)).take_over()
    driver = ControllerDriver(objects).take_over()
    the_topic(driver.ask(create("t", 1)))
    the_topic(other.ask(create("t", 2)))
    objects["shards/02"] = other.objects["shards/02"]
    driver = ControllerDriver(objects).take_over()
    assert len(driver.image.topics_by_id) == 2
    for _ in range(2):
        the_topic(driver.ask(delete("t")))
    assert (driver.image.topics, driver.image.topics_by_id) == ({}, {})
    assert isinstance(only(driver.ask(delete("t"))), UnknownTopicOrPartitionError)


def test_a_deletion_stands_until_every_holder_has_confirmed_it(
    objects: Objects,
) -> None:
    config = ClusterConfig(deleted_topic_retention_ms=0)
    driver = ControllerDriver(objects, config).take_over()
    driver.start_broker(register())
    driver.start_broker(register("b", directories=["d-b"]))
    topic = the_topic(driver.ask(create("t", replication_factor=2)))
    driver.ask(delete("t"))
    assert driver.image.deletions_of(BrokerId(0)) == [topic.topic_id]
    driver.ask(ConfirmDeletions(broker_id=BrokerId(0), topic_ids=[topic.topic_id]))
    assert driver.image.deletions_of(BrokerId(0)) == []
    assert driver.image.deletions_of(BrokerId(1)) == [topic.topic_id]
    successor = ControllerDriver(objects).take_over()
    assert successor.image.deletions_of(BrokerId(1)) == [topic.topic_id]
    successor.ask(ConfirmDeletions(broker_id=BrokerId(1), topic_ids=[topic.topic_id]))
    assert successor.image.deletions_of(BrokerId(1)) == []
    # To say it again, or of a topic that nobody knows, changes nothing.
    before = dict(objects)
    successor.ask(ConfirmDeletions(broker_id=BrokerId(1), topic_ids=[topic.topic_id]))
    assert objects == before


def test_deleted_topics_free_their_place_on_the_broker(objects: Objects) -> None:
    config = ClusterConfig(broker_partitions_max=4)
    driver = ControllerDriver(objects, config).take_over()
    driver.start_broker(register())
    the_topic(driver.ask(create("t", partitions=4)))
    assert isinstance(only(driver.ask(create("uu", 1))), InvalidPartitionsError)
    driver.ask(delete("t"))
    the_topic(driver.ask(create("uu", 1, partitions=4)))


# Producer ids.


def test_producer_ids_come_in_blocks_that_are_stored_before_they_are_used(
    objects: Objects, driver: ControllerDriver
) -> None:
    request_id = driver.send(AllocateProducerIds())
    assert request_id not in driver.results
    driver.settle()
    assert driver.results[request_id] == range(1000)
    successor = ControllerDriver(objects).take_over()
    assert successor.ask(AllocateProducerIds()) == range(1000, 2000)


def test_a_block_whose_write_is_not_confirmed_is_never_given_again(
    objects: Objects, driver: ControllerDriver
) -> None:
    driver.send(AllocateProducerIds())
    driver.lose_answer(applied=True)
    successor = ControllerDriver(objects).take_over()
    assert successor.ask(AllocateProducerIds()) == range(1000, 2000)


# Writes.


def test_an_answer_waits_for_its_write_and_the_image_comes_first(
    driver: ControllerDriver,
) -> None:
    request_id = driver.send(create("t"))
    assert request_id not in driver.results
    assert not driver.image.topics
    effects = driver.write()
    assert [type(effect) for effect in effects] == [PublishImage, Respond]
    assert [str(name) for name in driver.image.topics] == ["t"]


def test_changes_of_a_shard_meanwhile_go_into_one_next_write(driver: ControllerDriver) -> None:
    first = driver.send(create("t", 4))
    rest = [driver.send(create("t" * number, 4)) for number in range(2, 6)]
    assert [write.key for write in driver.writes] == ["shards/04"]
    driver.write()
    assert list(driver.results)[-1] == first
    assert [write.key for write in driver.writes] == ["shards/04"]
    effects = driver.write()
    answered = [effect.request_id for effect in effects if isinstance(effect, Respond)]
    assert answered == rest
    assert not driver.writes
    assert len(driver.image.topics) == 5


def test_shards_are_written_beside_each_other(driver: ControllerDriver) -> None:
    driver.send(create("t", 4))
    driver.send(create("uu", 5))
    assert [write.key for write in driver.writes] == ["shards/04", "shards/05"]


def test_a_refusal_waits_for_the_change_that_it_rests_on(driver: ControllerDriver) -> None:
    first = driver.send(create("t", 4))
    second = driver.send(create("t", 9))
    assert driver.results.keys().isdisjoint({first, second})
    driver.settle()
    assert isinstance(only(driver.results[second]), TopicAlreadyExistsError)


def test_a_topic_that_is_asked_for_again_by_its_id_is_answered_when_it_is_stored(
    driver: ControllerDriver,
) -> None:
    first, second = driver.send(create("t", 4)), driver.send(create("t", 4))
    assert [write.key for write in driver.writes] == ["shards/04"]
    assert driver.results.keys().isdisjoint({first, second})
    driver.settle()
    topic = the_topic(driver.results[first])
    assert the_topic(driver.results[second]) == topic
    assert the_topic(driver.ask(create("t", 4, validate_only=True))) == topic
    assert isinstance(only(driver.ask(create("t", 5))), TopicAlreadyExistsError)


def test_a_topic_id_of_zeros_is_refused(driver: ControllerDriver) -> None:
    new = CreateTopics(topics=[NewTopic(name="t")], topic_ids=[TopicId(bytes(TOPIC_ID_BYTES))])
    error = only(driver.ask(new))
    assert isinstance(error, MalformedRequestError)
    assert "zeros" in error.message
    assert not driver.image.topics


def test_a_topic_id_is_not_given_to_another_topic(driver: ControllerDriver) -> None:
    driver.ask(create("a", 4))
    assert only(driver.ask(create("a", 4))) == driver.image.topics[TopicName("default", "a")]
    error = only(driver.ask(create("b", 4)))
    assert isinstance(error, MalformedRequestError)
    assert "'a'" in error.message
    driver.ask(delete("a"))
    for name in ("a", "b"):  # Its data is not gone from all brokers yet.
        error = only(driver.ask(create(name, 4)))
        assert isinstance(error, MalformedRequestError)
        assert "deleted" in error.message


def test_a_request_that_changes_nothing_is_answered_without_a_write(
    driver: ControllerDriver,
) -> None:
    driver.ask(create("t", 4))
    effects = driver.perform(driver.machine.handle(99, alter("t", True, partitions=2), NOW))
    assert [type(effect) for effect in effects] == [Respond]


def test_a_write_whose_answer_was_lost_is_recognised(
    objects: Objects, driver: ControllerDriver
) -> None:
    request_id = driver.send(create("t", 4))
    assert driver.lose_answer(applied=True) == [ReadObject("shards/04")]
    driver.read()
    the_topic(driver.results[request_id])
    assert objects["shards/04"].version == 2


def test_a_write_that_was_not_done_is_done_again(
    objects: Objects, driver: ControllerDriver
) -> None:
    request_id = driver.send(create("t", 4))
    again = driver.writes[0]
    driver.lose_answer(applied=False)
    assert driver.read() == [again]
    driver.settle()
    the_topic(driver.results[request_id])
    assert objects["shards/04"].version == 2


def test_the_loss_of_the_lease_answers_all_who_wait_and_ends_the_machine(
    driver: ControllerDriver,
) -> None:
    waiting = [
        driver.send(create("t", 4)),
        driver.send(create("uu", 4)),
        driver.send(create("v", 5)),
    ]
    effects = driver.perform(driver.machine.resign("the lease was lost"))
    assert effects[-1] == Resigned("the lease was lost")
    for request_id in waiting:
        error = driver.results[request_id]
        assert isinstance(error, NotControllerError)
        assert error.appended is Appended.MAYBE
    assert driver.machine.on_object_written("shards/04") == []
    assert driver.machine.on_write_refused("shards/04") == []
    assert driver.machine.on_object_read("shards/04", None) == []
    assert driver.machine.resign("again") == []
    late = driver.results[driver.send(create("late"))]
    assert isinstance(late, NotControllerError)
    assert late.appended is Appended.NO


QUOTA = Quota(name="q", entity=QuotaEntity(client_id="c"), produce_bytes_per_second=5000)


def test_every_kind_of_request_is_answered(driver: ControllerDriver) -> None:
    topic = the_topic(driver.ask(create("t")))
    life = driver.live()[0]
    state = topic.partitions[0]
    requests: list[Request] = [
        create("u", 1),
        alter("t"),
        delete("u"),
        UndeleteTopics(topics=[TopicRef(name="u")]),
        delete("u"),
        PurgeTopics(topics=[TopicRef(name="u")]),
        ConfirmDeletions(broker_id=BrokerId(0), topic_ids=[]),
        AllocateProducerIds(),
        CreatePositionsTopic(topic_id=topic_id(9)),
        CreateTransactionsTopic(topic_id=topic_id(10)),
        register(),
        Heartbeat(life=life, metadata_epoch=0),
        DrainBroker(broker_id=BrokerId(0), is_drained=False),
        AlterPartitions(
            changes=[
                AlterPartition(
                    topic_id=topic.topic_id,
                    partition=0,
                    leader=life,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    isr=state.isr,
                )
            ]
        ),
        RenewReplicas(replica=life, renewals=[]),
        ReassignPartitions(
            reassignments=[
                Reassignment(topic_id=topic.topic_id, partition=0, replicas=state.replicas)
            ]
        ),
        ElectLeaders(kind=ElectionKind.PREFERRED, partitions=[TopicPartition(topic.topic_id, 0)]),
        register("gone", directories=["d-gone"]),
        UnregisterBroker(broker_id=BrokerId(max(driver.image.cluster.brokers) + 1)),
        SetQuotas(quotas=[QUOTA]),
        DeleteQuotas(names=[QUOTA.name]),
    ]
    assert {type(request) for request in requests} == {*get_args(Request)}
    for request in requests:
        answer = driver.ask(request)
        assert not isinstance(answer, MillraceError)
        if isinstance(answer, list):
            assert not any(isinstance(each, MillraceError) for each in answer)


# The image.


def test_the_image_says_what_changed(driver: ControllerDriver) -> None:
    driver.ask(create("stays", 1))
    driver.ask(create("goes", 1))
    driver.ask(create("changes", 2))
    old = driver.image
    driver.ask(delete("goes"))
    driver.ask(alter("changes", partitions=2))
    driver.ask(create("comes", 3))
    changes = driver.image.changes_since(old)
    assert [str(topic.name) for topic in changes.created] == ["comes"]
    assert [str(topic.name) for topic in changes.deleted] == ["goes"]
    ((before, after),) = changes.altered
    assert (len(before.partitions), len(after.partitions)) == (1, 2)


def test_an_image_never_changes_and_its_epoch_counts_the_writes(driver: ControllerDriver) -> None:
    driver.ask(create("t", 1))
    old, old_topics = driver.image, dict(driver.image.topics)
    driver.ask(delete("t"))
    assert driver.image.epoch == old.epoch + 1
    assert old.topics == old_topics
    assert [image.epoch for image in driver.images] == sorted(
        {image.epoch for image in driver.images}
    )


def test_lookups_of_what_is_not_there_find_nothing(driver: ControllerDriver) -> None:
    topic = the_topic(driver.ask(create("t", partitions=2)))
    image = driver.image
    assert image.partition(TopicPartition(topic.topic_id, 1)) is topic.partitions[1]
    assert image.partition(TopicPartition(topic.topic_id, 2)) is None
    assert image.partition(TopicPartition(topic.topic_id, -1)) is None
    assert image.partition(TopicPartition(topic_id(9), 0)) is None
    assert image.broker(BrokerId(7)) is None
    replicas = list(image.replicas_of(BrokerId(0)))
    assert [replica.partition for replica, _ in replicas] == [0, 1]
    leaderless = topic.partitions[0].successor(leader=NO_BROKER, isr=topic.partitions[0].isr)
    assert image.leader_address(leaderless, Listener.CLIENTS) == ""


def test_ids_fall_to_the_shard_that_the_tests_mean() -> None:
    assert [shard_of(topic_id(number)) for number in range(32)] == list(range(32))
