"""What an intruder tries: on records, topics, settings and replicas, groups and transactions."""

from collections.abc import Sequence
from typing import Any, Final

from tests.fakes.kafka_batches import Record, batch_of
from tests.sim.clients.kafka.administrator import Call, kind_of
from tests.sim.clients.kafka.connections import NO_ERROR, NO_TOPIC_ID
from tests.sim.clients.kafka.intruder import DENIED, DESCRIBES, NEVER, NONE, Intruder
from tests.sim.machines.rules_of_brokers import CHANGING, READER, WRITER

from millrace.broker.kafka.administration.configs import ResourceType
from millrace.broker.kafka.requests import ApiKey

_READS: Final = frozenset({READER})
_TIMEOUT_MS: Final = 4_000
_LAST_BY_NAME: Final = 12
"""Later versions of Produce and Fetch have the ids of topics."""


class ReadingIntruder(Intruder):
    """Tries to read and write, and to see what there is."""

    def _calls(self) -> Sequence[Call]:
        return [
            self._produce,
            self._fetch,
            self._list_offsets,
            self._look_up,
            self._list_topics,
            self._describe_settings,
            self._describe_producers,
            self._describe_log_dirs,
        ]

    async def _produce(self) -> None:
        if self._is == WRITER:
            return  # What it would write is in no history.
        kind = kind_of(ApiKey.PRODUCE, "TopicProduceData")
        data = batch_of([Record(b"intruder")])
        for name in (self._site.topic, NEVER):
            partition = kind.PartitionProduceData(index=0, records=data)
            await self._attempt(
                ApiKey.PRODUCE,
                lambda answer: [
                    told.error_code for told in answer.responses[0].partition_responses
                ],
                most=_LAST_BY_NAME,
                transactional_id=None,
                acks=-1,
                timeout_ms=_TIMEOUT_MS,
                topic_data=[kind(name=name, partition_data=[partition])],
            )

    async def _fetch(self) -> None:
        kind = kind_of(ApiKey.FETCH, "FetchTopic")
        partition = kind.FetchPartition(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1_000,
        )
        for name in (self._site.topic, NEVER):
            answer = await self._attempt(
                ApiKey.FETCH,
                lambda answer: [told.error_code for told in answer.responses[0].partitions],
                _READS if name == self._site.topic else NONE,
                most=_LAST_BY_NAME,
                replica_id=-1,
                max_wait_ms=10,
                min_bytes=0,
                max_bytes=1_000,
                isolation_level=1,
                session_id=0,
                session_epoch=-1,
                topics=[kind(topic=name, partitions=[partition])],
                forgotten_topics_data=[],
                rack_id="",
            )
            if answer is not None:
                [told] = answer.responses[0].partitions
                if told.error_code in DENIED and told.records:
                    raise self._wrong(f"{self._is} is refused, and gets {told.records!r}")

    async def _list_offsets(self) -> None:
        kind = kind_of(ApiKey.LIST_OFFSETS, "ListOffsetsTopic")
        partition = kind.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=-1
        )
        await self._attempt(
            ApiKey.LIST_OFFSETS,
            lambda answer: [told.error_code for told in answer.topics[0].partitions],
            DESCRIBES,
            replica_id=-1,
            isolation_level=1,
            topics=[kind(name=self._site.topic, partitions=[partition])],
            timeout_ms=_TIMEOUT_MS,
        )

    async def _look_up(self) -> None:
        kind = kind_of(ApiKey.METADATA, "MetadataRequestTopic")
        for name in (self._site.topic, NEVER):
            await self._attempt(
                ApiKey.METADATA,
                lambda answer: [topic.error_code for topic in answer.topics],
                DESCRIBES if name == self._site.topic else NONE,
                topics=[kind(name=name, topic_id=NO_TOPIC_ID)],
                allow_auto_topic_creation=True,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )

    async def _list_topics(self) -> None:
        answer = await self._try(
            ApiKey.METADATA,
            least=9,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        if answer is None:
            return
        self._check(answer.error_code or NO_ERROR, "topics")
        may_see = {self._site.topic} if self._is in {*DESCRIBES, CHANGING} else set()
        names = {topic.name for topic in answer.topics}
        if not names <= may_see:
            raise self._wrong(f"{self._is} is told of {names}")

    async def _describe_settings(self) -> None:
        kind = kind_of(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsResource")
        await self._attempt(
            ApiKey.DESCRIBE_CONFIGS,
            lambda answer: [told.error_code for told in answer.results],
            DESCRIBES,
            resources=[
                kind(
                    resource_type=ResourceType.TOPIC,
                    resource_name=self._site.topic,
                    configuration_keys=None,
                )
            ],
            include_synonyms=False,
            include_documentation=False,
        )

    async def _describe_producers(self) -> None:
        kind = kind_of(ApiKey.DESCRIBE_PRODUCERS, "TopicRequest")
        await self._attempt(
            ApiKey.DESCRIBE_PRODUCERS,
            lambda answer: [told.error_code for told in answer.topics[0].partitions],
            DESCRIBES,
            topics=[kind(name=self._site.topic, partition_indexes=[0])],
        )

    async def _describe_log_dirs(self) -> None:
        await self._attempt(
            ApiKey.DESCRIBE_LOG_DIRS, lambda answer: [answer.error_code], least=3, topics=None
        )
        await self._attempt(
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            lambda answer: [answer.error_code],
            components=[],
            strict=False,
        )


class ChangingIntruder(Intruder):
    """Tries to change topics, settings, replicas and leaders."""

    def _calls(self) -> Sequence[Call]:
        return [
            self._create_topic,
            self._delete_topic,
            self._add_partitions,
            self._alter,
            self._reassign,
            self._elect,
            self._delete_records,
        ]

    def _place(self, key: int, name: str, partition: str, **fields: Any) -> Any:
        """Return the first partition of the topic, or of one that there is not, in a request."""
        topic = self._dice.choice((self._site.topic, NEVER))
        kind = kind_of(key, name)
        return kind(name=topic, partitions=[getattr(kind, partition)(partition_index=0, **fields)])

    async def _create_topic(self) -> None:
        topic = kind_of(ApiKey.CREATE_TOPICS, "CreatableTopic")(
            name=self._dice.choice((self._site.topic, NEVER)),
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        await self._attempt(
            ApiKey.CREATE_TOPICS,
            lambda answer: [topic.error_code for topic in answer.topics],
            topics=[topic],
            timeout_ms=_TIMEOUT_MS,
            validate_only=self._dice.random() < 0.5,
        )
        if self._site.is_stored(NEVER):
            raise self._wrong(f"{NEVER} is there")

    async def _delete_topic(self) -> None:
        names = [self._site.topic, NEVER]
        kind = kind_of(ApiKey.DELETE_TOPICS, "DeleteTopicState")
        await self._attempt(
            ApiKey.DELETE_TOPICS,
            lambda answer: [topic.error_code for topic in answer.responses],
            topics=[kind(name=name, topic_id=NO_TOPIC_ID) for name in names],
            topic_names=names,
            timeout_ms=_TIMEOUT_MS,
        )

    async def _add_partitions(self) -> None:
        kind = kind_of(ApiKey.CREATE_PARTITIONS, "CreatePartitionsTopic")
        await self._attempt(
            ApiKey.CREATE_PARTITIONS,
            lambda answer: [topic.error_code for topic in answer.results],
            topics=[kind(name=self._site.topic, count=99, assignments=None)],
            timeout_ms=_TIMEOUT_MS,
            validate_only=False,
        )

    async def _alter(self) -> None:
        key = self._dice.choice((ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS))
        kind = kind_of(key, "AlterConfigsResource")
        resource = kind(
            resource_type=ResourceType.TOPIC,
            resource_name=self._dice.choice((self._site.topic, NEVER)),
            configs=[kind.AlterableConfig(name="retention.ms", value="1")],
        )
        await self._attempt(
            key,
            lambda answer: [told.error_code for told in answer.responses],
            resources=[resource],
            validate_only=False,
        )

    async def _reassign(self) -> None:
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        await self._attempt(
            key,
            lambda answer: [answer.error_code],
            timeout_ms=_TIMEOUT_MS,
            allow_replication_factor_change=True,
            topics=[self._place(key, "ReassignableTopic", "ReassignablePartition", replicas=[0])],
        )

    async def _elect(self) -> None:
        await self._attempt(
            ApiKey.ELECT_LEADERS,
            lambda answer: [answer.error_code],
            least=1,
            election_type=0,
            topic_partitions=None,
            timeout_ms=_TIMEOUT_MS,
        )

    async def _delete_records(self) -> None:
        key = ApiKey.DELETE_RECORDS
        await self._attempt(
            key,
            lambda answer: [told.error_code for told in answer.topics[0].partitions],
            topics=[self._place(key, "DeleteRecordsTopic", "DeleteRecordsPartition", offset=1)],
            timeout_ms=_TIMEOUT_MS,
        )


class GroupIntruder(Intruder):
    """Tries to take part in groups and transactions, and to see them."""

    def _calls(self) -> Sequence[Call]:
        return [
            self._join,
            self._join_as_a_consumer,
            self._commit,
            self._look_where_a_group_is,
            self._describe_groups,
            self._list_groups,
            self._delete_group,
            self._begin_a_transaction,
            self._find_coordinator,
            self._describe_transaction,
            self._list_transactions,
        ]

    async def _join(self) -> None:
        kind = kind_of(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol")
        await self._attempt(
            ApiKey.JOIN_GROUP,
            lambda answer: [answer.error_code],
            group_id=NEVER,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[kind(name="range", metadata=b"")],
            reason=None,
        )

    async def _join_as_a_consumer(self) -> None:
        await self._attempt(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            lambda answer: [answer.error_code],
            group_id=NEVER,
            member_id="me",
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[self._site.topic],
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        )

    async def _commit(self) -> None:
        kind = kind_of(ApiKey.OFFSET_COMMIT, "OffsetCommitRequestTopic")
        position = kind.OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        await self._attempt(
            ApiKey.OFFSET_COMMIT,
            lambda answer: [told.error_code for told in answer.topics[0].partitions],
            group_id=NEVER,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[kind(name=self._site.topic, topic_id=NO_TOPIC_ID, partitions=[position])],
        )

    async def _look_where_a_group_is(self) -> None:
        kind = kind_of(ApiKey.OFFSET_FETCH, "OffsetFetchRequestGroup")
        await self._attempt(
            ApiKey.OFFSET_FETCH,
            lambda answer: [told.error_code for told in answer.groups],
            least=8,
            groups=[kind(group_id=NEVER, member_id=None, member_epoch=-1, topics=None)],
            require_stable=False,
        )

    async def _describe_groups(self) -> None:
        await self._attempt(
            ApiKey.DESCRIBE_GROUPS,
            lambda answer: [told.error_code for told in answer.groups],
            groups=[NEVER],
            include_authorized_operations=False,
        )
        await self._attempt(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            lambda answer: [told.error_code for told in answer.groups],
            group_ids=[NEVER],
            include_authorized_operations=False,
        )

    async def _list_groups(self) -> None:
        answer = await self._try(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
        if answer is not None and answer.groups:
            raise self._wrong(f"{self._is} is told of {answer.groups}")

    async def _delete_group(self) -> None:
        await self._attempt(
            ApiKey.DELETE_GROUPS,
            lambda answer: [told.error_code for told in answer.results],
            groups_names=[NEVER],
        )

    async def _begin_a_transaction(self) -> None:
        await self._attempt(
            ApiKey.INIT_PRODUCER_ID,
            lambda answer: [answer.error_code],
            transactional_id=NEVER,
            transaction_timeout_ms=_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )

    async def _find_coordinator(self) -> None:
        await self._attempt(
            ApiKey.FIND_COORDINATOR,
            lambda answer: [told.error_code for told in answer.coordinators],
            least=4,
            key="",
            key_type=self._dice.choice((0, 1)),
            coordinator_keys=[NEVER],
        )

    async def _describe_transaction(self) -> None:
        await self._attempt(
            ApiKey.DESCRIBE_TRANSACTIONS,
            lambda answer: [told.error_code for told in answer.transaction_states],
            transactional_ids=[NEVER],
        )

    async def _list_transactions(self) -> None:
        answer = await self._try(
            ApiKey.LIST_TRANSACTIONS,
            state_filters=[],
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern=None,
        )
        if answer is not None and answer.transaction_states:
            raise self._wrong(f"{self._is} is told of {answer.transaction_states}")
