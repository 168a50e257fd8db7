"""What a client knows of the cluster: brokers, topics, leaders and the controller.

Brokers that lag may answer, too. Every answer names the state of its metadata by a number that is
the same on all brokers (`metadata_epoch`), and older metadata never replaces newer: neither a
topic, nor its absence, nor the brokers. Answers older than this client's last change are ignored,
too. A leader that a refusal named may be newer than any answer: a partition's leader never goes
back to an earlier leader epoch, nor a broker to an earlier life.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from millrace.client._cluster import wire
from millrace.client._cluster.wire import BrokerInfo, TopicInfo
from millrace.core.errors import AccessDeniedError
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    ControllerEpoch,
    KnownLeader,
    Leader,
    TopicId,
    TopicPartition,
)
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import cluster_pb2


class Metadata:
    """The newest that brokers have told."""

    def __init__(self) -> None:
        self.controller_id = NO_BROKER
        self.controller_epoch = ControllerEpoch(0)
        self.controller_problem = ""
        self.epoch = 0
        """`metadata_epoch` of the newest answer; 0: none named it."""
        self._all_known_at = 0  # Of the newest answer about all topics.
        # Of newer knowledge about single topics, or their absence, by name.
        self._known_at: dict[str, int] = {}
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topic_names: dict[TopicId, str] = {}
        self.denied: dict[str, AccessDeniedError] = {}
        """Topics that this client may not see, as of the last look-up of each, there or not."""

    def is_behind(self, response: cluster_pb2.GetMetadataResponse) -> bool:
        """Return whether an answer is older than what is known."""
        return 0 < response.metadata_epoch < self.epoch

    def learn(
        self,
        response: cluster_pb2.GetMetadataResponse,
        *,
        is_full: bool,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Store a broker's answer about the cluster, unless newer metadata is known.

        Args:
            response: the broker's answer.
            is_full: it has all topics: others do not exist.
            wanted: the topics that are stored beside the known ones; None: all of the answer.
        """
        if response.controller_epoch >= self.controller_epoch:
            self.controller_id = BrokerId(response.controller_id)
            self.controller_epoch = ControllerEpoch(response.controller_epoch)
            self.controller_problem = response.controller_problem
        if not self.is_behind(response):
            self._learn_brokers(response)
        epoch = response.metadata_epoch
        self.epoch = max(self.epoch, epoch)
        seen = set()
        for topic in response.topics:
            if not topic.name:
                continue  # There is none with the id that was asked for.
            name = str(parse_topic_name(topic.name))
            seen.add(name)
            if self._is_older(epoch, name):
                continue
            if wanted is not None and name not in wanted and name not in self.topics:
                continue
            self._known_at[name] = max(epoch, self._known_at.get(name, 0))
            error = wire.error_of(topic)
            self.denied.pop(name, None)
            if isinstance(error, AccessDeniedError):
                self.denied[name] = error  # It may be there: what is known of it stays.
            elif error is not None:
                self._forget(name)
            else:
                self._learn_topic(wire.topic_from_wire(topic))
        if is_full:
            for name in self.topics.keys() - seen:
                if not self._is_older(epoch, name):
                    self._known_at[name] = epoch
                    self._forget(name)
        if is_full and wanted is None:
            self._all_known_at = max(self._all_known_at, epoch)
            self._known_at = {
                name: at for name, at in self._known_at.items() if at > self._all_known_at
            }

    def _is_older(self, epoch: int, name: str) -> bool:
        """Whether an answer of this state is older than what is known of a topic."""
        return 0 < epoch < max(self._known_at.get(name, 0), self._all_known_at)

    def _learn_brokers(self, response: cluster_pb2.GetMetadataResponse) -> None:
        found = {}
        for described in response.brokers:
            broker = wire.broker_from_wire(described)
            known = self.brokers.get(broker.broker_id)
            is_past = known is not None and known.broker_epoch > broker.broker_epoch
            found[broker.broker_id] = known if known is not None and is_past else broker
        for broker_id, known in self.brokers.items():
            # A broker without a name is known only from a refusal, which may be newer than this.
            if broker_id not in found and (not response.metadata_epoch or not known.name):
                found[broker_id] = known
        self.brokers = found

    def _learn_topic(self, info: TopicInfo) -> None:
        known = self.topics.get(info.name)
        if known is not None and known.topic_id == info.topic_id:
            info = _not_behind(info, known)
            if info == known:
                return  # Who waits for news compares objects, not thousands of partitions.
        self.topics[info.name] = info
        self.topic_names[info.topic_id] = info.name

    def learn_address(self, named: KnownLeader) -> None:
        """Take where a leader is."""
        broker_id = named.leader.broker_id
        if broker_id < 0:
            return
        broker = self.brokers.get(broker_id)
        if broker is None:
            self.brokers[broker_id] = BrokerInfo(broker_id, "", named.address, "", False)
        elif broker.address != named.address:
            self.brokers[broker_id] = replace(broker, address=named.address, drpc_address="")

    def drpc_address_of(self, address: str) -> str:
        """Return where the broker of a gRPC address is reached by DRPC; empty: it is not known."""
        return next(
            (known.drpc_address for known in self.brokers.values() if known.address == address), ""
        )

    def learn_leader(self, place: TopicPartition, named: KnownLeader) -> bool:
        """Take the leader that a broker's refusal names; return whether that is news."""
        self.learn_address(named)
        info = self.topics.get(self.topic_names.get(place.topic_id, ""))
        if info is None or place.partition >= len(info.partitions):
            return False
        partition = info.partitions[place.partition]
        if named.leader.leader_epoch <= partition.leader.leader_epoch:
            return False
        led = replace(partition, leader=named.leader, leader_address=named.address)
        rest = info.partitions[place.partition + 1 :]
        partitions = (*info.partitions[: place.partition], led, *rest)
        self.topics[info.name] = replace(info, partitions=partitions)
        return named.leader.broker_id >= 0

    def name_of(self, topic_id: TopicId) -> str:
        """Return the name of a topic for people: its id where the name is not known."""
        return self.topic_names.get(topic_id, topic_id.hex())

    def leader_of(self, place: TopicPartition) -> Leader | None:
        """Return the known leader of a partition; None: there is no such partition."""
        info = self.topics.get(self.topic_names.get(place.topic_id, ""))
        if info is None or place.partition >= len(info.partitions):
            return None
        return info.partitions[place.partition].leader

    def leaders(self) -> dict[TopicPartition, Leader]:
        """Return the leader of each partition of the known topics."""
        return {
            TopicPartition(info.topic_id, partition.partition): partition.leader
            for info in self.topics.values()
            for partition in info.partitions
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, TopicId | None]:
        """Return which topics have these names, as of the last look-up; None: there is none."""
        found = {name: self.topics.get(name) for name in names}
        return {name: None if info is None else info.topic_id for name, info in found.items()}

    def _forget(self, name: str) -> None:
        info = self.topics.pop(name, None)
        if info is not None:
            self.topic_names.pop(info.topic_id, None)


def _not_behind(new: TopicInfo, known: TopicInfo) -> TopicInfo:
    """Return a described topic, with newer leaders where they are known."""
    if len(new.partitions) < len(known.partitions):
        return known
    merged = [
        before if before.leader.leader_epoch > after.leader.leader_epoch else after
        for before, after in zip(known.partitions, new.partitions, strict=False)
    ]
    return replace(new, partitions=(*merged, *new.partitions[len(merged) :]))
