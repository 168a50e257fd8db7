"""A controller and several brokers that obey it, for tests of its decisions."""

from collections.abc import Iterable, Mapping

from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.controller.lease import Deposed
from millrace.core.errors import MillraceError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.media import Media
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    BrokerLife,
    KafkaAddresses,
    PartitionState,
    SideAddresses,
    Topic,
)
from millrace.core.metadata.requests import (
    AlterPartition,
    AlterPartitions,
    CreateTopics,
    NewTopic,
    RegisterBroker,
    Request,
)


def registration(
    broker_id: int,
    incarnation: str = "1",
    *,
    previous_broker_epoch: int | None = None,
    directories: Iterable[str] | None = None,
    rack: str = "",
) -> RegisterBroker:
    """Return the request of the broker that gets this id, if brokers register in order."""
    return RegisterBroker(
        name=f"b{broker_id}",
        rack=rack,
        host=f"h{broker_id}",
        port=7092,
        incarnation_id=incarnation,
        directory_ids=[f"d{broker_id}"] if directories is None else [*directories],
        broker_id=None,
        previous_broker_epoch=None
        if previous_broker_epoch is None
        else BrokerEpoch(previous_broker_epoch),
    )


class Cluster:
    """The controller's driver, and brokers that answer it.

    Attributes:
        driver: of the active controller; `replace_controller` replaces it.
    """

    def __init__(self, brokers: int = 3, config: ClusterConfig | None = None) -> None:
        self.objects = Objects()
        self.config = config or ClusterConfig()
        self.driver = ControllerDriver(self.objects, self.config).take_over()
        for broker_id in range(brokers):
            self.driver.start_broker(registration(broker_id))
        self.driver.tick()

    def replace_controller(self, deposed: Deposed | None = None) -> None:
        """Let another controller take over; the clock continues.

        Args:
            deposed: the former controller, whose lease ran out.
        """
        now = self.driver.now
        self.driver = ControllerDriver(self.objects, self.config, deposed=deposed)
        self.driver.now = now
        self.driver.take_over()

    def create(
        self,
        name: str = "t",
        *,
        partitions: int = 1,
        replication_factor: int = 3,
        config: Mapping[str, str] | None = None,
        shard: int = 0,
    ) -> TopicId:
        """Create a topic; return its id."""
        topic_id = TopicId(shard.to_bytes(4, "big") + name.encode().ljust(12, b"."))
        new = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config or {},
        )
        (topic,) = self.ask_each(CreateTopics(topics=[new], topic_ids=[topic_id]))
        assert isinstance(topic, Topic), topic
        return topic_id

    def state(self, topic_id: TopicId, partition: int = 0) -> PartitionState:
        """A partition's stored state."""
        return self.driver.image.topics_by_id[topic_id].partitions[partition]

    def life(self, broker_id: int) -> BrokerLife:
        return self.driver.image.cluster.brokers[BrokerId(broker_id)].life

    def give_media(self, broker_id: int, *media: Media) -> None:
        """Report log directories of these media in a broker's heartbeats from now on."""
        self.driver.media[BrokerId(broker_id)] = media
        self.driver.beat(self.life(broker_id))

    def give_outside_address(self, broker_id: int, address: str) -> None:
        """Report a broker's outside address in its heartbeats from now on."""
        self.driver.outside_addresses[BrokerId(broker_id)] = address
        self.driver.beat(self.life(broker_id))

    def give_drpc_addresses(self, broker_id: int, addresses: SideAddresses) -> None:
        """Report where a broker is reached by DRPC in its heartbeats from now on."""
        self.driver.drpc_addresses[BrokerId(broker_id)] = addresses
        self.driver.beat(self.life(broker_id))

    def give_kafka_addresses(self, broker_id: int, addresses: KafkaAddresses) -> None:
        """Report where Kafka's clients reach a broker in its heartbeats from now on."""
        self.driver.kafka_addresses[BrokerId(broker_id)] = addresses
        self.driver.beat(self.life(broker_id))

    def report_offline(self, broker_id: int, topic_id: TopicId) -> None:
        """Report a topic's first partition as offline in a broker's heartbeat."""
        self.driver.beat(self.life(broker_id), offline=[TopicPartition(topic_id, 0)])

    def ask_each(self, request: Request) -> list[object]:
        """Send a request whose answer is a list; return it."""
        answer = self.driver.ask(request)
        assert isinstance(answer, list), answer
        return answer

    def change_isr(
        self, topic_id: TopicId, *members: int, partition: int = 0, **changes: object
    ) -> PartitionState | MillraceError:
        """Let the leader ask for an ISR of these brokers; return the answer.

        Args:
            changes: fields of the request that differ from the leader's.
        """
        answer = self.ask_each(
            AlterPartitions(
                changes=[self.isr_change(topic_id, *members, partition=partition, **changes)]
            )
        )[0]
        assert isinstance(answer, PartitionState | MillraceError)
        return answer

    def isr_change(
        self, topic_id: TopicId, *members: int, partition: int = 0, **changes: object
    ) -> AlterPartition:
        state = self.state(topic_id, partition)
        fields: dict[str, object] = {
            "topic_id": topic_id,
            "partition": partition,
            "leader": state.leader_life,
            "leader_epoch": LeaderEpoch(state.leader_epoch),
            "partition_epoch": PartitionEpoch(state.partition_epoch),
            "isr": tuple(self.life(member) for member in members),
        }
        return AlterPartition(**{**fields, **changes})  # type: ignore[arg-type]

    def restart(
        self, broker_id: int, incarnation: str, *, previous_broker_epoch: int | None = None
    ) -> BrokerLife:
        """Start a dead broker again; return its new life, unfenced."""
        request = registration(broker_id, incarnation, previous_broker_epoch=previous_broker_epoch)
        return self.driver.start_broker(request).life


def ids(lives: Iterable[BrokerLife]) -> list[int]:
    """The brokers of some entries."""
    return [life.broker_id for life in lives]
