"""An administrator of groups by Kafka's protocol; it also asks for transactions, quotas and ACLs.

It commits positions under names of its own, as a reader without a group does, also in transactions,
forgets some of them, and deletes the name. What was acknowledged is told from then on; what was
aborted or deleted is not.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from tests.sim.clients.kafka.administrator import Call, KafkaAdministrator, kind_of
from tests.sim.clients.kafka.connections import NO_ERROR, NO_TOPIC_ID, error_of
from tests.sim.clients.kafka.coordinators import (
    ELSEWHERE,
    OF_GROUP,
    OF_TRANSACTIONS,
    KafkaCoordinator,
)
from tests.sim.clients.readers_and_writers import Job

from millrace.broker.kafka.names import uuid_of
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import FencedError, MillraceError

_NOWHERE: Final = -1
_UNKNOWN: Final = 999
_FIRST_WITH_IDS: Final = 10
_FIRST_WITH_ALL: Final = 2
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_STABLE: Final = 7
_FIRST_WITH_KEYS: Final = 4
_LONG: Final = "x" * 20_000
_TIMEOUT_MS: Final = 60_000
_GROUP_STATES: Final = frozenset(
    {"Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead", "Assigning"}
    | {"Reconciling"}
)
_ENDED: Final = frozenset({"CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort"})
_STATES: Final = _ENDED | {"Empty", "Ongoing"}
_OF_TIME: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
"""So an end is refused when the transaction's time was over."""


@dataclass(slots=True)
class _Own:
    """A name under which it has committed positions.

    Attributes:
        positions: by number of a partition.
    """

    name: str
    coordinator: KafkaCoordinator
    positions: dict[int, int] = field(default_factory=dict)


class GroupAdministrator(KafkaAdministrator):
    """Commits positions, and looks at groups and transactions."""

    def __init__(self, job: Job, *, may_be_lost: Callable[[], bool]) -> None:
        super().__init__(job, may_be_lost=may_be_lost)
        self._own: dict[str, _Own] = {}
        self._made = 0
        self._said = 0

    def _calls(self) -> Sequence[Call]:
        return [
            self._commit,
            self._commit,
            self._commit_what_is_wrong,
            self._commit_in_a_transaction,
            self._commit_in_a_transaction,
            self._begin_wrongly,
            self._look_where_it_is,
            self._forget,
            self._delete,
            self._delete_what_is_wrong,
            self._describe_groups,
            self._list_groups,
            self._list_transactions,
            self._find_coordinators,
            self._describe_quotas,
            self._describe_acls,
            self._describe_cluster,
            self._describe_topics,
        ]

    # --- Its own names -----------------------------------------------------------------------

    def _any_own(self) -> _Own:
        if not self._own or (len(self._own) < 2 and self._dice.random() < 0.3):
            self._made += 1
            name = f"{self.name}-{self._made}"
            self._own[name] = _Own(name, KafkaCoordinator(self._brokers, name, OF_GROUP))
        return self._dice.choice(list(self._own.values()))

    @contextlib.contextmanager
    def _changing(self, own: _Own) -> Iterator[None]:
        """Nobody knows what is stored under the name if the block fails."""
        try:
            yield
        except MillraceError:
            self._own.pop(own.name, None)
            raise

    def _connect_anew(self) -> None:
        super()._connect_anew()
        for own in self._own.values():
            own.coordinator = KafkaCoordinator(self._brokers, own.name, OF_GROUP)

    async def _ask_coordinator(
        self, coordinator: KafkaCoordinator, key: int, /, *, least: int = 0, **fields: Any
    ) -> Any:
        """Return what a coordinator answers.

        Raises:
            MillraceError: it does not answer, or is another one.
        """
        version = self._version(key, least)
        message = codec.request_class(key)(version=version, **fields)
        return await coordinator.ask(key, version, message)

    def _answered(self, coordinator: KafkaCoordinator, code: int, about: str, *also: int) -> int:
        """Return a code of a coordinator as `_check` does; it is looked up again if it moved."""
        if code in ELSEWHERE:
            coordinator.forget()
        return self._check(code, about, *also)

    async def _topic_id(self) -> UUID:
        known = await self._brokers.look_up(self._site.topic)
        found: UUID = known.topic_id
        return found

    # --- Positions ---------------------------------------------------------------------------

    def _drawn_positions(self) -> dict[int, int]:
        self._said += 1
        numbers = range(len(self._site.partitions))
        some = self._dice.sample(numbers, self._dice.randrange(1, len(numbers) + 1))
        return dict.fromkeys(some, self._said)

    async def _ask_to_commit(
        self, own: _Own, positions: Mapping[int, int], *, about: str = "", topic: str = ""
    ) -> set[int]:
        """Return the codes of the partitions."""
        key = ApiKey.OFFSET_COMMIT
        version = self._version(key)
        topic_id = await self._topic_id() if version >= _FIRST_WITH_IDS else NO_TOPIC_ID
        kind = kind_of(key, "OffsetCommitRequestTopic")
        asked = kind(
            name=topic or self._site.topic,
            topic_id=topic_id,
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=about,
                )
                for number, offset in positions.items()
            ],
        )
        message = codec.request_class(key)(
            version=version,
            group_id=own.name,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[asked],
        )
        answer = await own.coordinator.ask(key, version, message)
        return {told.error_code for told in answer.topics[0].partitions}

    async def _commit(self) -> None:
        own, positions = self._any_own(), self._drawn_positions()
        with self._changing(own):
            for code in await self._ask_to_commit(own, positions):
                self._answered(own.coordinator, code, own.name)
        own.positions |= positions
        await self._judge_own(own)

    async def _commit_what_is_wrong(self) -> None:
        own = self._any_own()
        with self._changing(own):
            if self._dice.random() < 0.5:
                found = await self._ask_to_commit(own, {_UNKNOWN: 1})
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found = await self._ask_to_commit(own, {0: 1}, about=_LONG)
                code = Code.OFFSET_METADATA_TOO_LARGE
            for told in found:
                if told in ELSEWHERE:
                    own.coordinator.forget()
                self._refused(told, f"a commit of {own.name}", code)

    async def _judge_own(self, own: _Own) -> None:
        """Check that the coordinator tells of the positions that were acknowledged."""
        found = await self._positions(own)
        if found != own.positions and not self._may_be_lost():
            raise self._wrong(f"{own.positions} were committed as {own.name}, and {found} are told")

    async def _positions(self, own: _Own, *, is_stable: bool = False) -> dict[int, int]:
        """Return where a name is, in partitions where it is anywhere."""
        key = ApiKey.OFFSET_FETCH
        version = self._version(key, _FIRST_WITH_STABLE if is_stable else 0)
        topic_id = await self._topic_id() if version >= _FIRST_WITH_IDS else NO_TOPIC_ID
        numbers = [*range(len(self._site.partitions)), _UNKNOWN]
        kind, group = (
            kind_of(key, "OffsetFetchRequestTopic"),
            kind_of(key, "OffsetFetchRequestGroup"),
        )
        # Of all, also Kafka tells nothing of a partition whose first position is not decided yet.
        is_all = version >= _FIRST_WITH_ALL and not is_stable and self._dice.random() < 0.3
        topics = [kind(name=self._site.topic, partition_indexes=numbers)]
        topics_of_group = [
            group.OffsetFetchRequestTopics(
                name=self._site.topic, topic_id=topic_id, partition_indexes=numbers
            )
        ]
        message = codec.request_class(key)(
            version=version,
            group_id=own.name,
            topics=None if is_all else topics,
            groups=[
                group(
                    group_id=own.name,
                    member_id=None,
                    member_epoch=-1,
                    topics=None if is_all else topics_of_group,
                )
            ],
            require_stable=is_stable,
        )
        answer = await own.coordinator.ask(key, version, message)
        told = answer.groups[0] if version >= _FIRST_WITH_GROUPS else answer
        self._answered(own.coordinator, told.error_code or NO_ERROR, own.name)
        found: dict[int, int] = {}
        for topic in told.topics:
            for partition in topic.partitions:
                self._answered(own.coordinator, partition.error_code, own.name)
                if partition.committed_offset != _NOWHERE:
                    found[partition.partition_index] = partition.committed_offset
        return found

    async def _look_where_it_is(self) -> None:
        await self._judge_own(self._any_own())

    async def _forget(self) -> None:
        """Forget the positions of some partitions."""
        own = self._any_own()
        if not own.positions:
            return
        numbers = self._dice.sample(list(own.positions), 1)
        kind = kind_of(ApiKey.OFFSET_DELETE, "OffsetDeleteRequestTopic")
        asked = kind(
            name=self._site.topic,
            partitions=[kind.OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
        )
        # A name without any position left may be gone.
        gone = Code.GROUP_ID_NOT_FOUND
        with self._changing(own):
            answer = await self._ask_coordinator(
                own.coordinator, ApiKey.OFFSET_DELETE, group_id=own.name, topics=[asked]
            )
            self._answered(own.coordinator, answer.error_code, own.name)
            for topic in answer.topics:
                for told in topic.partitions:
                    self._answered(own.coordinator, told.error_code, own.name, gone)
        for number in numbers:
            del own.positions[number]
        await self._judge_own(own)

    async def _delete(self) -> None:
        own = self._any_own()
        with self._changing(own):
            answer = await self._ask_coordinator(
                own.coordinator, ApiKey.DELETE_GROUPS, groups_names=[own.name]
            )
            [told] = answer.results
            gone = () if own.positions else (Code.GROUP_ID_NOT_FOUND,)
            if not self._may_be_lost() and told.error_code == Code.GROUP_ID_NOT_FOUND and not gone:
                raise self._wrong(f"{own.name} has positions, and is not found")
            self._answered(own.coordinator, told.error_code, own.name, Code.GROUP_ID_NOT_FOUND)
        own.positions.clear()
        await self._judge_own(own)
        await self._judge_gone(own)
        del self._own[own.name]

    async def _judge_gone(self, own: _Own) -> None:
        """Check that a deleted name is described as none."""
        answer = await self._ask_coordinator(
            own.coordinator,
            ApiKey.DESCRIBE_GROUPS,
            groups=[own.name],
            include_authorized_operations=False,
        )
        [told] = answer.groups
        gone = Code.GROUP_ID_NOT_FOUND
        self._answered(own.coordinator, told.error_code, own.name, gone)
        if told.group_state != "Dead" and not self._may_be_lost():
            raise self._wrong(f"{own.name} is deleted, and described as {told}")

    async def _delete_what_is_wrong(self) -> None:
        answer = await self._ask(ApiKey.DELETE_GROUPS, groups_names=["", f"{self.name}-never"])
        nameless, never = answer.results
        self._refused(nameless.error_code, "no name", Code.INVALID_GROUP_ID)
        self._refused(never.error_code, "no group", Code.GROUP_ID_NOT_FOUND, *ELSEWHERE)

    # --- Transactions ------------------------------------------------------------------------

    async def _commit_in_a_transaction(self) -> None:
        """Commit positions in a transaction, and perhaps abort it."""
        own, positions = self._any_own(), self._drawn_positions()
        name = f"{own.name}-{self._said}"
        coordinator = KafkaCoordinator(self._brokers, name, OF_TRANSACTIONS)
        is_commit = self._dice.random() < 0.6
        with self._changing(own):
            try:
                await self._transact(own, positions, name, coordinator, is_commit=is_commit)
            except FencedError as error:  # It was too slow, and was aborted.
                raise error_of(Code.REQUEST_TIMED_OUT, f"{name}: {error}") from None
        if is_commit:
            own.positions |= positions
        found = await self._positions(own, is_stable=True)
        if found != own.positions and not self._may_be_lost():
            raise self._wrong(f"after {name}, {own.positions} count for {own.name}; told: {found}")

    async def _transact(
        self,
        own: _Own,
        positions: Mapping[int, int],
        name: str,
        coordinator: KafkaCoordinator,
        *,
        is_commit: bool,
    ) -> None:
        begun = await self._init_producer(coordinator, name, _TIMEOUT_MS)
        self._answered(coordinator, begun.error_code, name)
        producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        answer = await self._ask_coordinator(
            coordinator,
            ApiKey.ADD_OFFSETS_TO_TXN,
            transactional_id=name,
            group_id=own.name,
            **producer,
        )
        self._answered(coordinator, answer.error_code, name)
        await self._describe_transaction(name, coordinator)
        kind = kind_of(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommitRequestTopic")
        asked = kind(
            name=self._site.topic,
            partitions=[
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
                for number, offset in positions.items()
            ],
        )
        answer = await self._ask_coordinator(
            own.coordinator,
            ApiKey.TXN_OFFSET_COMMIT,
            transactional_id=name,
            group_id=own.name,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[asked],
            **producer,
        )
        for told in answer.topics[0].partitions:
            self._answered(own.coordinator, told.error_code, name)
        answer = await self._ask_coordinator(
            coordinator,
            ApiKey.END_TXN,
            transactional_id=name,
            committed=is_commit,
            **producer,
        )
        self._answered(coordinator, answer.error_code, name)

    async def _describe_transaction(self, name: str, coordinator: KafkaCoordinator) -> None:
        answer = await self._ask_coordinator(
            coordinator, ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[name, "never"]
        )
        told = {each.transactional_id: each for each in answer.transaction_states}
        self._answered(coordinator, told[name].error_code, name)
        if told[name].transaction_state not in _STATES:
            raise self._wrong(f"{name} is described as {told[name]}")
        unknown = Code.TRANSACTIONAL_ID_NOT_FOUND
        self._refused(told["never"].error_code, "no transaction", unknown, *ELSEWHERE)

    async def _begin_wrongly(self) -> None:
        timeout_ms, code = self._dice.choice(
            (
                (0, Code.INVALID_TRANSACTION_TIMEOUT),
                ((1 << 31) - 1, Code.INVALID_TRANSACTION_TIMEOUT),
            )
        )
        name = f"{self.name}-wrong"
        coordinator = KafkaCoordinator(self._brokers, name, OF_TRANSACTIONS)
        begun = await self._init_producer(coordinator, name, timeout_ms)
        self._refused(begun.error_code, f"a time-out of {timeout_ms} ms", code)

    async def _init_producer(
        self, coordinator: KafkaCoordinator, name: str, timeout_ms: int
    ) -> Any:
        """Ask for the producer of a transactional id; return the answer."""
        return await self._ask_coordinator(
            coordinator,
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )

    async def _list_transactions(self) -> None:
        broker = self._dice.choice(await self._living())
        asked = self._dice.choice(([], ["Ongoing"], ["Ongoing", "Sleeping"], ["Sleeping"]))
        answer = await self._ask(
            ApiKey.LIST_TRANSACTIONS,
            at=broker,
            state_filters=asked,
            producer_id_filters=[],
            duration_filter=self._dice.choice((-1, 1_000)),
            transactional_id_pattern=None,
        )
        self._check(answer.error_code, "transactions")
        if answer.unknown_state_filters != [name for name in asked if name not in _STATES]:
            raise self._wrong(f"of {asked} it does not know {answer.unknown_state_filters}")
        known = {name for name in asked if name in _STATES}
        for told in answer.transaction_states:
            if told.transaction_state not in (known if asked else _STATES):
                raise self._wrong(f"{asked} were asked for, and {told} is told")

    # --- Groups ------------------------------------------------------------------------------

    async def _describe_groups(self) -> None:
        own = self._any_own()
        names = [own.name, own.name, *await self._list_some()]
        answer = await self._ask_coordinator(
            own.coordinator,
            ApiKey.DESCRIBE_GROUPS,
            groups=names,
            include_authorized_operations=self._dice.random() < 0.5,
        )
        for told in answer.groups:
            # Others may be at another broker, or be deleted meanwhile.
            gone = (Code.GROUP_ID_NOT_FOUND, *ELSEWHERE)
            code = self._check(told.error_code, told.group_id, *gone)
            if code == NO_ERROR and told.group_state not in _GROUP_STATES:
                raise self._wrong(f"a group is described as {told}")
        answer = await self._ask_coordinator(
            own.coordinator,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            group_ids=names,
            include_authorized_operations=self._dice.random() < 0.5,
        )
        for told in answer.groups:
            self._check(told.error_code, told.group_id, Code.GROUP_ID_NOT_FOUND, *ELSEWHERE)

    async def _list_some(self) -> list[str]:
        """Return the groups that a broker coordinates."""
        broker = self._dice.choice(await self._living())
        states = self._dice.choice(([], [], ["Stable", "Empty"]))
        types = self._dice.choice(([], [], ["classic"], ["consumer"]))
        answer = await self._ask(
            ApiKey.LIST_GROUPS, at=broker, states_filter=states, types_filter=types
        )
        self._check(answer.error_code, "groups")
        for told in answer.groups:
            if told.group_state not in {None, "", *_GROUP_STATES}:
                raise self._wrong(f"a group is listed as {told}")
        return [told.group_id for told in answer.groups]

    async def _list_groups(self) -> None:
        names = await self._list_some()
        if len(names) > len({*names}):
            raise self._wrong(f"groups are listed twice: {names}")

    async def _find_coordinators(self) -> None:
        answer = await self._ask(
            ApiKey.FIND_COORDINATOR,
            least=_FIRST_WITH_KEYS,
            key="",
            key_type=self._dice.choice((OF_GROUP, OF_TRANSACTIONS)),
            coordinator_keys=[f"{self.name}-{number}" for number in range(3)],
        )
        for told in answer.coordinators:
            self._check(told.error_code, told.key)
        answer = await self._ask(
            ApiKey.FIND_COORDINATOR,
            least=_FIRST_WITH_KEYS,
            key="",
            key_type=9,
            coordinator_keys=["anything"],
        )
        [told] = answer.coordinators
        self._refused(told.error_code, "a coordinator of nothing", Code.INVALID_REQUEST)

    # --- The cluster -------------------------------------------------------------------------

    async def _describe_quotas(self) -> None:
        kind = kind_of(ApiKey.DESCRIBE_CLIENT_QUOTAS, "ComponentData")
        rights = [
            [],
            [kind(entity_type="user", match_type=2, match=None)],
            [kind(entity_type="client-id", match_type=0, match="somebody")],
            [
                kind(entity_type="user", match_type=1, match=None),
                kind(entity_type="client-id", match_type=2, match=None),
            ],
        ]
        wrongs = [
            [kind(entity_type="user", match_type=2, match=None)] * 2,
            [kind(entity_type="planet", match_type=2, match=None)],
            [kind(entity_type="user", match_type=7, match=None)],
            [kind(entity_type="user", match_type=0, match=None)],
        ]
        for components, is_right in (
            (self._dice.choice(rights), True),
            (self._dice.choice(wrongs), False),
        ):
            answer = await self._ask(
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                components=components,
                strict=self._dice.random() < 0.5,
            )
            if is_right:
                self._check(answer.error_code, "quotas")
            else:
                self._refused(answer.error_code, f"{components}", Code.INVALID_REQUEST)

    async def _describe_acls(self) -> None:
        answer = await self._ask(
            ApiKey.DESCRIBE_ACLS,
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        self._refused(answer.error_code, "a look at ACLs", Code.SECURITY_DISABLED)

    async def _describe_cluster(self) -> None:
        endpoint = self._dice.choice((1, 1, 2))
        answer = await self._ask(
            ApiKey.DESCRIBE_CLUSTER,
            least=1,
            include_cluster_authorized_operations=self._dice.random() < 0.5,
            endpoint_type=endpoint,
            include_fenced_brokers=False,
        )
        if endpoint != 1:
            code = Code.UNSUPPORTED_ENDPOINT_TYPE
            self._refused(answer.error_code, "a look at controllers", code)
            return
        self._check(answer.error_code, "the cluster")
        ids = [broker.broker_id for broker in answer.brokers]
        if len(ids) > len({*ids}) or answer.controller_id not in ids:
            raise self._wrong(f"brokers are {ids}, and {answer.controller_id} is the controller")

    async def _describe_topics(self) -> None:
        """Ask for all topics, for some by id, and for one that there is not."""
        kind = kind_of(ApiKey.METADATA, "MetadataRequestTopic")
        topic_id = await self._topic_id()
        asked = self._dice.choice(
            (
                None,
                [kind(name=None, topic_id=topic_id), kind(name=None, topic_id=uuid_of(b"\7" * 16))],
                [kind(name=f"{self.name}-never", topic_id=NO_TOPIC_ID)],
            )
        )
        answer = await self._ask(
            ApiKey.METADATA,
            least=12,
            topics=asked,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=self._dice.random() < 0.5,
            include_cluster_authorized_operations=False,
        )
        self._check(answer.error_code or NO_ERROR, "topics")
        for told in answer.topics:
            unknown = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
            self._check(told.error_code, f"{told.name}", *unknown)
            for partition in told.partitions:
                if not {*partition.isr_nodes} <= {*partition.replica_nodes}:
                    raise self._wrong(f"who is in sync is no replica: {partition}")
