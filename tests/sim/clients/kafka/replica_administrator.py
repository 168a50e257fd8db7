"""An administrator of replicas by Kafka's protocol, who is one of topics, too.

It moves the replicas of its own topics, elects leaders, and looks at what brokers hold. No broker
tells of what is not committed, or of a leader that is no replica.
"""

from collections.abc import Sequence
from typing import Final

from tests.sim.clients.kafka.administrator import Call, kind_of
from tests.sim.clients.kafka.connections import NO_ERROR
from tests.sim.clients.kafka.topic_administrator import TIMEOUT_MS, UNKNOWN, TopicAdministrator

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import RetriableError

_ALL_OFFSETS: Final = -1


class ReplicaAdministrator(TopicAdministrator):
    """Moves replicas and leaders, and looks at them."""

    def _calls(self) -> Sequence[Call]:
        return [
            *super()._calls(),
            self._describe_partitions,
            self._reassign,
            self._reassign_wrongly,
            self._elect,
            self._describe_log_dirs,
            self._describe_producers,
            self._list_offsets,
            self._find_epoch_ends,
            self._delete_records,
        ]

    # --- Replicas and leaders ----------------------------------------------------------------

    async def _describe_partitions(self) -> None:
        """Look at all topics, some partitions at a time."""
        cursor, found = None, list[tuple[str, int]]()
        limit = self._dice.choice((1, 2, 100))
        for _ in range(UNKNOWN):
            answer = await self._ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                topics=[],
                response_partition_limit=limit,
                cursor=cursor,
            )
            for topic in answer.topics:
                self._check(topic.error_code, topic.name, Code.UNKNOWN_TOPIC_OR_PARTITION)
                for partition in topic.partitions:
                    found.append((topic.name, partition.partition_index))
                    leader = partition.leader_id
                    if leader >= 0 and leader not in partition.replica_nodes:
                        raise self._wrong(f"the leader of {topic.name} is no replica: {partition}")
                    if not {*partition.isr_nodes} <= {*partition.replica_nodes}:
                        raise self._wrong(f"who is in sync is no replica: {partition}")
            if answer.next_cursor is None:
                break
            told, kind = answer.next_cursor, kind_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "Cursor")
            cursor = kind(topic_name=told.topic_name, partition_index=told.partition_index)
        if len(found) > len({*found}):
            raise self._wrong(f"partitions are described twice: {found}")

    async def _ask_to_reassign(
        self, place: tuple[str, int], replicas: Sequence[int] | None, *, may_differ: bool = True
    ) -> int:
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        kind = kind_of(key, "ReassignableTopic")
        partition = kind.ReassignablePartition(
            partition_index=place[1], replicas=None if replicas is None else list(replicas)
        )
        answer = await self._ask(
            key,
            least=0 if may_differ else 1,
            timeout_ms=TIMEOUT_MS,
            allow_replication_factor_change=may_differ,
            topics=[kind(name=place[0], partitions=[partition])],
        )
        self._check(answer.error_code, f"a reassignment of {place}")
        [topic] = answer.responses
        [told] = topic.partitions
        code: int = told.error_code
        return code

    async def _reassign(self) -> None:
        own, brokers = await self._any_own(), await self._living()
        place = own.name, self._dice.randrange(own.partitions)
        replicas = self._dice.sample(brokers, self._dice.randrange(1, len(brokers) + 1))
        code = await self._ask_to_reassign(place, replicas)
        gone = (Code.INVALID_REPLICA_ASSIGNMENT, Code.BROKER_ID_NOT_REGISTERED)
        if self._check(code, f"a reassignment of {place} to {replicas}", *gone) == NO_ERROR:
            stored = self._stored(own.name)
            target = None if stored is None else list(stored.partitions[place[1]].target)
            if target != replicas:
                raise self._wrong(f"{place} goes to {replicas}, and is to go to {target}")
        asked = None
        if self._dice.random() < 0.5:
            key = ApiKey.LIST_PARTITION_REASSIGNMENTS
            kind = kind_of(key, "ListPartitionReassignmentsTopics")
            asked = [kind(name=place[0], partition_indexes=[place[1]])]
        answer = await self._ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, timeout_ms=TIMEOUT_MS, topics=asked
        )
        self._check(answer.error_code, "reassignments")
        for topic in answer.topics:
            for partition in topic.partitions:
                moving = {*partition.adding_replicas, *partition.removing_replicas}
                if not moving or not moving <= {*partition.replicas}:
                    raise self._wrong(f"a reassignment of {topic.name} is told as {partition}")
        if self._dice.random() < 0.5:
            code = await self._ask_to_reassign(place, None)
            self._check(
                code, f"the end of a reassignment of {place}", Code.NO_REASSIGNMENT_IN_PROGRESS
            )

    async def _reassign_wrongly(self) -> None:
        own, brokers = await self._any_own(), await self._living()
        replicas, partition, may_differ, codes = self._dice.choice(
            (
                (brokers[:1] * 9, 0, False, {Code.INVALID_REPLICATION_FACTOR}),
                (brokers[:1] * 2, 0, True, {Code.INVALID_REPLICA_ASSIGNMENT}),
                (
                    [UNKNOWN],
                    0,
                    True,
                    {Code.INVALID_REPLICA_ASSIGNMENT, Code.BROKER_ID_NOT_REGISTERED},
                ),
                (brokers[:1], UNKNOWN, True, {Code.UNKNOWN_TOPIC_OR_PARTITION}),
            )
        )
        code = await self._ask_to_reassign((own.name, partition), replicas, may_differ=may_differ)
        self._refused(code, f"a reassignment to {replicas}", *codes)

    async def _elect(self) -> None:
        kind = kind_of(ApiKey.ELECT_LEADERS, "TopicPartitions")
        own = await self._any_own()
        named = [
            kind(topic=own.name, partitions=[0, UNKNOWN]),
            kind(topic=self._site.topic, partitions=[0]),
        ]
        answer = await self._ask(
            ApiKey.ELECT_LEADERS,
            election_type=0,
            topic_partitions=self._dice.choice((None, named)),
            timeout_ms=TIMEOUT_MS,
        )
        self._check(answer.error_code or NO_ERROR, "an election")
        for topic in answer.replica_election_results:
            for told in topic.partition_result:
                also = Code.ELECTION_NOT_NEEDED, Code.UNKNOWN_TOPIC_OR_PARTITION
                self._check(told.error_code, f"an election of {topic.topic}", *also)
        answer = await self._ask(
            ApiKey.ELECT_LEADERS,
            least=1,
            election_type=1,
            topic_partitions=[kind(topic=own.name, partitions=[UNKNOWN])],
            timeout_ms=TIMEOUT_MS,
        )
        [topic] = answer.replica_election_results
        [told] = topic.partition_result
        self._refused(told.error_code, "an election", Code.UNKNOWN_TOPIC_OR_PARTITION)

    # --- What brokers hold -------------------------------------------------------------------

    async def _describe_log_dirs(self) -> None:
        broker, asked = self._dice.choice(await self._living()), None
        if self._dice.random() < 0.5:
            kind = kind_of(ApiKey.DESCRIBE_LOG_DIRS, "DescribableLogDirTopic")
            asked = [kind(topic=self._site.topic, partitions=[0])]
        answer = await self._ask(ApiKey.DESCRIBE_LOG_DIRS, at=broker, topics=asked)
        self._check(answer.error_code or NO_ERROR, "log directories")
        for told in answer.results:
            self._check(told.error_code, told.log_dir)
            for topic in told.topics:
                for partition in topic.partitions:
                    if partition.partition_size < 0 or partition.offset_lag < 0:
                        raise self._wrong(f"a replica of {topic.name} is told as {partition}")

    async def _leader_of(self, topic: str, partition: int) -> int:
        """Return the leader of a partition.

        Raises:
            MillraceError: nobody, as far as is known.
        """
        known = (await self._brokers.look_up(topic)).leaders.get(partition)
        if known is None or known.broker_id < 0:
            raise RetriableError(f"nobody leads partition {partition} of {topic}")
        return known.broker_id

    async def _describe_producers(self) -> None:
        partition = self._dice.randrange(len(self._site.partitions))
        leader = await self._leader_of(self._site.topic, partition)
        kind = kind_of(ApiKey.DESCRIBE_PRODUCERS, "TopicRequest")
        asked = kind(name=self._site.topic, partition_indexes=[partition, UNKNOWN])
        answer = await self._ask(ApiKey.DESCRIBE_PRODUCERS, at=leader, topics=[asked])
        [topic] = answer.topics
        for told in topic.partitions:
            if told.partition_index == UNKNOWN:
                unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
                self._refused(told.error_code, f"partition {UNKNOWN}", unknown)
                continue
            self._check(told.error_code, self._site.topic)
            for producer in told.active_producers:
                if producer.producer_id < 0 or producer.producer_epoch < 0:
                    raise self._wrong(f"a producer is told as {producer}")

    async def _list_offsets(self) -> None:
        partition = self._dice.randrange(len(self._site.partitions))
        leader = await self._leader_of(self._site.topic, partition)
        kind = kind_of(ApiKey.LIST_OFFSETS, "ListOffsetsTopic")
        now_ms = self._machine.process.host.wall_ns() // 1_000_000
        places = (-1, -2, -3, -4, -5, -6, -99, now_ms - self._dice.randrange(60_000))
        asked = kind(
            name=self._site.topic,
            partitions=[
                kind.ListOffsetsPartition(
                    partition_index=partition,
                    current_leader_epoch=-1,
                    timestamp=self._dice.choice(places),
                )
            ],
        )
        answer = await self._ask(
            ApiKey.LIST_OFFSETS,
            at=leader,
            replica_id=-1,
            isolation_level=self._dice.choice((0, 1)),
            topics=[asked],
            timeout_ms=TIMEOUT_MS,
        )
        [topic] = answer.topics
        [told] = topic.partitions
        if self._check(told.error_code, "an offset", Code.UNSUPPORTED_VERSION) == NO_ERROR:
            committed = self._site.committed(self._site.partitions[partition])
            if told.offset > committed:
                raise self._wrong(f"offset {told.offset} is told, and {committed} is committed")

    async def _find_epoch_ends(self) -> None:
        partition = self._dice.randrange(len(self._site.partitions))
        leader = await self._leader_of(self._site.topic, partition)
        kind = kind_of(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderTopic")
        asked = kind(
            topic=self._site.topic,
            partitions=[
                kind.OffsetForLeaderPartition(
                    partition=number, current_leader_epoch=-1, leader_epoch=0
                )
                for number in (partition, UNKNOWN)
            ],
        )
        answer = await self._ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, at=leader, replica_id=-1, topics=[asked]
        )
        [topic] = answer.topics
        told = {each.partition: each for each in topic.partitions}
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        self._refused(told[UNKNOWN].error_code, f"partition {UNKNOWN}", unknown)
        self._check(told[partition].error_code, "the end of an epoch")

    async def _delete_records(self) -> None:
        """Delete the records of an own topic, which has none."""
        own = await self._any_own()
        leader = await self._leader_of(own.name, 0)
        kind = kind_of(ApiKey.DELETE_RECORDS, "DeleteRecordsTopic")
        number, offset = self._dice.choice(((0, _ALL_OFFSETS), (0, 5), (UNKNOWN, _ALL_OFFSETS)))
        asked = kind.DeleteRecordsPartition(partition_index=number, offset=offset)
        answer = await self._ask(
            ApiKey.DELETE_RECORDS,
            at=leader,
            topics=[kind(name=own.name, partitions=[asked])],
            timeout_ms=TIMEOUT_MS,
        )
        [topic] = answer.topics
        [told] = topic.partitions
        if number == UNKNOWN:
            self._refused(told.error_code, "a deletion", Code.UNKNOWN_TOPIC_OR_PARTITION)
        elif offset > 0:
            self._refused(told.error_code, "a deletion", Code.OFFSET_OUT_OF_RANGE)
        elif "compact" not in own.overrides.get("cleanup.policy", ""):
            self._check(told.error_code, "a deletion")
            if told.low_watermark:
                raise self._wrong(f"{own.name} begins at {told.low_watermark}")
