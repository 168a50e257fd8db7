"""An administrator of topics by Kafka's protocol: partitions and settings.

It makes topics of its own, changes them, and deletes them. What was acknowledged is stored at once,
and brokers soon show it; what was refused, or only validated, has changed nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from tests.sim.clients.kafka.administrator import Call, KafkaAdministrator, kind_of
from tests.sim.clients.kafka.connections import NO_ERROR, NO_TOPIC_ID
from tests.sim.clients.readers_and_writers import Job
from tests.sim.world import MILLISECOND

from millrace.broker.kafka.administration.configs import ConfigOperation, ResourceType
from millrace.broker.kafka.administration.topic_settings import WITHOUT_EFFECT, ConfigSource
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import MillraceError, RetriableError, UnknownServerError
from millrace.core.metadata.model import Topic

TIMEOUT_MS: Final = 4_000
_SHOWN_US: Final = 100 * MILLISECOND
_OWN_MAX: Final = 2
UNKNOWN: Final = 999
_NOT_NAMED: Final = UUID(int=7)
_PARTITIONS_MAX: Final = 4
_DEFAULT: Final = -1
_SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "retention.ms": ("60000", "86400000"),
    "max.message.bytes": ("100000", "200000"),
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "segment.ms": ("20000", "30000"),
    "compression.type": ("zstd", "producer"),
}


@dataclass(slots=True)
class Own:
    """A topic that it has made, as it must be.

    Attributes:
        overrides: its settings that are not the defaults.
    """

    name: str
    partitions: int
    topic_id: UUID | None = None
    overrides: dict[str, str] = field(default_factory=dict)


class TopicAdministrator(KafkaAdministrator):
    """Makes topics, changes them, looks at them, and deletes them.

    Args:
        stored: returns a topic as it is stored, by its name; None: there is none.
    """

    def __init__(
        self,
        job: Job,
        *,
        may_be_lost: Callable[[], bool],
        stored: Callable[[str], Topic | None],
    ) -> None:
        super().__init__(job, may_be_lost=may_be_lost)
        self._stored = stored
        self._own: dict[str, Own] = {}
        self._in_doubt: list[str] = []
        self._made = 0

    def _calls(self) -> Sequence[Call]:
        return [
            self._create,
            self._create,
            self._validate_creation,
            self._create_what_is_wrong,
            self._add_partitions,
            self._add_wrong_partitions,
            self._alter,
            self._alter_some,
            self._alter_what_is_wrong,
            self._describe_settings,
            self._describe_what_has_none,
            self._list_resources,
            self._delete,
            self._delete_what_is_wrong,
        ]

    # --- Its own topics ----------------------------------------------------------------------

    def _new_name(self) -> str:
        self._made += 1
        return f"{self.name}-{self._made}"

    async def _any_own(self) -> Own:
        """Return one of its topics, which is made first if there is none.

        Raises:
            MillraceError: that fails.
        """
        while not self._own:
            await self._create()
        return self._dice.choice(list(self._own.values()))

    @contextlib.contextmanager
    def _changing(self, own: Own) -> Iterator[None]:
        """Nobody knows what the topic is like if the block fails."""
        try:
            yield
        except MillraceError:
            self._own.pop(own.name, None)
            self._in_doubt.append(own.name)
            raise

    def _drawn_settings(self) -> dict[str, str]:
        names = self._dice.sample(list(_SETTINGS), self._dice.randrange(len(_SETTINGS)))
        return {name: self._dice.choice(_SETTINGS[name]) for name in names}

    async def _judge_own(self, own: Own) -> None:
        """Check that a topic is stored as it must be, and wait until a broker shows that."""
        stored = self._stored(own.name)
        if stored is None:
            raise self._wrong(f"{own.name} is not stored, though that was acknowledged")
        found = {name: _text(name, value) for name, value in stored.overrides.items()}
        if len(stored.partitions) != own.partitions or found != own.overrides:
            raise self._wrong(f"{own} was acknowledged, and is stored as {stored}")
        while not self._is_done:
            try:
                if await self._is_shown(own):
                    return
            except RetriableError as error:
                self._judge(error)
            await self._pause(_SHOWN_US)

    async def _is_shown(self, own: Own) -> bool:
        told = await self._described(own.name)
        shown = await self._settings_of(own.name)
        if told is None or shown is None:
            return False
        overrides = {
            name: _text(name, setting.value)
            for name, setting in shown.items()
            if setting.config_source == ConfigSource.TOPIC
        }
        return len(told.partitions) == own.partitions and overrides == own.overrides

    async def _described(self, name: str) -> Any:
        """Return how a broker describes a topic; None: it knows none."""
        answer = await self._ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            topics=[kind_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "TopicRequest")(name=name)],
            response_partition_limit=UNKNOWN,
            cursor=None,
        )
        [told] = answer.topics
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        return None if self._check(told.error_code, name, unknown) else told

    async def _settings_of(self, name: str) -> dict[str, Any] | None:
        """Return the settings of a topic as a broker shows them; None: it knows none."""
        [told] = await self._shown(ResourceType.TOPIC, name)
        if self._check(told.error_code, name, Code.UNKNOWN_TOPIC_OR_PARTITION):
            return None
        return {setting.name: setting for setting in told.configs}

    async def _shown(
        self, kind: int, name: str, at: int | None = None, keys: Sequence[str] | None = None
    ) -> Any:
        resource = kind_of(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsResource")(
            resource_type=kind,
            resource_name=name,
            configuration_keys=keys,
        )
        answer = await self._ask(
            ApiKey.DESCRIBE_CONFIGS,
            at=at,
            resources=[resource],
            include_synonyms=self._dice.random() < 0.5,
            include_documentation=self._dice.random() < 0.5,
        )
        return answer.results

    # --- Creation ----------------------------------------------------------------------------

    async def _ask_to_create(
        self,
        name: str,
        partitions: int = _DEFAULT,
        replicas: int = _DEFAULT,
        *,
        settings: Mapping[str, str | None] | None = None,
        assignment: Sequence[tuple[int, Sequence[int]]] = (),
        times: int = 1,
        is_checked_alone: bool = False,
    ) -> Any:
        kind = kind_of(ApiKey.CREATE_TOPICS, "CreatableTopic")
        topic = kind(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[
                kind.CreatableReplicaAssignment(partition_index=number, broker_ids=list(those))
                for number, those in assignment
            ],
            configs=[
                kind.CreatableTopicConfig(name=key, value=value)
                for key, value in (settings or {}).items()
            ],
        )
        answer = await self._ask(
            ApiKey.CREATE_TOPICS,
            least=4,
            topics=[topic] * times,
            timeout_ms=TIMEOUT_MS,
            validate_only=is_checked_alone,
        )
        [created] = answer.topics
        return created

    async def _create(self) -> None:
        if len(self._own) >= _OWN_MAX:
            await self._delete()
            return
        own = Own(self._new_name(), 0)
        settings = self._drawn_settings()
        own.overrides = _effective(settings)
        brokers = await self._living()
        with self._changing(own):
            if self._dice.random() < 0.4:
                size = self._dice.randrange(1, len(brokers) + 1)
                assignment = [
                    (number, self._dice.sample(brokers, size))
                    for number in range(self._dice.randrange(1, _PARTITIONS_MAX))
                ]
                own.partitions = len(assignment)
                created = await self._ask_to_create(
                    own.name, settings=settings, assignment=assignment
                )
            else:
                own.partitions = self._dice.randrange(1, _PARTITIONS_MAX)
                replicas = self._dice.choice((1, 2, 3, _DEFAULT))
                created = await self._ask_to_create(
                    own.name, own.partitions, replicas, settings=settings
                )
            # Brokers that could take a replica may be gone meanwhile.
            gone = (Code.INVALID_REPLICATION_FACTOR, Code.INVALID_REPLICA_ASSIGNMENT)
            code = self._check(created.error_code, own.name, *gone)
        if code:
            self._judge_missing(own.name)
            return
        if created.topic_id not in (None, NO_TOPIC_ID):
            own.topic_id = created.topic_id
        self._own[own.name] = own
        await self._judge_own(own)

    def _judge_missing(self, name: str) -> None:
        if self._stored(name) is not None:
            raise self._wrong(f"{name} is stored, though it was refused, deleted or only checked")

    async def _validate_creation(self) -> None:
        name = self._new_name()
        created = await self._ask_to_create(name, 1, 1, is_checked_alone=True)
        self._check(created.error_code, name, Code.INVALID_REPLICATION_FACTOR)
        self._judge_missing(name)

    async def _create_what_is_wrong(self) -> None:
        name, brokers = self._new_name(), await self._living()
        wrong: list[tuple[int, str, dict[str, Any]]] = [
            (Code.INVALID_REQUEST, name, {"partitions": 1, "times": 2}),
            (Code.INVALID_REQUEST, name, {"partitions": 1, "assignment": [(0, brokers[:1])]}),
            (Code.INVALID_REPLICA_ASSIGNMENT, name, {"assignment": [(1, brokers[:1])]}),
            (Code.INVALID_REPLICA_ASSIGNMENT, name, {"assignment": [(0, [UNKNOWN])]}),
            (Code.INVALID_PARTITIONS, name, {"partitions": 0}),
            (Code.INVALID_REPLICATION_FACTOR, name, {"replicas": 0}),
            (Code.INVALID_REPLICATION_FACTOR, name, {"replicas": 99}),
            (Code.INVALID_CONFIG, name, {"settings": {"retention.ms": None}}),
            (Code.INVALID_CONFIG, name, {"settings": {"no.such": "1"}}),
            (Code.INVALID_CONFIG, name, {"settings": {"segment.jitter.ms": "x"}}),
            (Code.INVALID_CONFIG, name, {"settings": {"remote.storage.enable": "true"}}),
            (Code.INVALID_TOPIC_EXCEPTION, "no name", {}),
            (Code.TOPIC_ALREADY_EXISTS, self._site.topic, {}),
        ]
        code, called, fields = self._dice.choice(wrong)
        created = await self._ask_to_create(called, **fields)
        self._refused(created.error_code, f"the creation of {called} with {fields}", code)
        self._judge_missing(name)

    # --- Partitions --------------------------------------------------------------------------

    async def _ask_for_partitions(
        self, name: str, count: int, *, times: int = 1, is_checked_alone: bool = False
    ) -> int:
        kind = kind_of(ApiKey.CREATE_PARTITIONS, "CreatePartitionsTopic")
        answer = await self._ask(
            ApiKey.CREATE_PARTITIONS,
            topics=[kind(name=name, count=count, assignments=None)] * times,
            timeout_ms=TIMEOUT_MS,
            validate_only=is_checked_alone,
        )
        [told] = answer.results
        code: int = told.error_code
        return code

    async def _add_partitions(self) -> None:
        own = await self._any_own()
        is_checked_alone = self._dice.random() < 0.3
        with self._changing(own):
            code = await self._ask_for_partitions(
                own.name, own.partitions + 1, is_checked_alone=is_checked_alone
            )
            # Not enough brokers may be there now.
            self._check(code, own.name, Code.INVALID_REPLICATION_FACTOR)
        if code == NO_ERROR and not is_checked_alone:
            own.partitions += 1
        await self._judge_own(own)

    async def _add_wrong_partitions(self) -> None:
        own = await self._any_own()
        count, times, codes = self._dice.choice(
            (
                (0, 1, {Code.INVALID_PARTITIONS}),
                (own.partitions, 1, {Code.INVALID_PARTITIONS}),
                (own.partitions + 1, 2, {Code.INVALID_REQUEST}),
            )
        )
        with self._changing(own):
            code = await self._ask_for_partitions(own.name, count, times=times)
            self._refused(code, f"a change to {count} partitions of {own}", *codes)
        await self._judge_own(own)

    # --- Settings ----------------------------------------------------------------------------

    async def _ask_to_alter(
        self,
        key: int,
        name: str,
        settings: Sequence[tuple[str, str | None, int]],
        *,
        resource_type: int = ResourceType.TOPIC,
        times: int = 1,
        is_checked_alone: bool = False,
    ) -> list[int]:
        """Return the code of each entry.

        Args:
            settings: names, values, and operations of incremental changes.
        """
        kind = kind_of(key, "AlterConfigsResource")
        resource = kind(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                kind.AlterableConfig(name=key_, value=value, **_operation(key, operation))
                for key_, value, operation in settings
            ],
        )
        answer = await self._ask(key, resources=[resource] * times, validate_only=is_checked_alone)
        return [told.error_code for told in answer.responses]

    async def _alter(self) -> None:
        own = await self._any_own()
        settings, is_checked_alone = self._drawn_settings(), self._dice.random() < 0.2
        entries = [(name, value, ConfigOperation.SET) for name, value in settings.items()]
        with self._changing(own):
            [code] = await self._ask_to_alter(
                ApiKey.ALTER_CONFIGS, own.name, entries, is_checked_alone=is_checked_alone
            )
            self._check(code, own.name)
        if not is_checked_alone:
            own.overrides = _effective(settings)
        await self._judge_own(own)

    async def _alter_some(self) -> None:
        own = await self._any_own()
        after = dict(own.overrides)
        entries: list[tuple[str, str | None, int]] = []
        for name, value in self._drawn_settings().items():
            if name == "cleanup.policy" and self._dice.random() < 0.6:
                words = set(after.get(name, "delete").split(","))
                word = self._dice.choice(("delete", "compact"))
                if self._dice.random() < 0.5 and len(words - {word}) > 0:
                    entries.append((name, word, ConfigOperation.SUBTRACT))
                    words -= {word}
                else:
                    entries.append((name, word, ConfigOperation.APPEND))
                    words |= {word}
                after[name] = ",".join(sorted(words))
            elif self._dice.random() < 0.3:
                entries.append((name, None, ConfigOperation.DELETE))
                after.pop(name, None)
            else:
                entries.append((name, value, ConfigOperation.SET))
                after[name] = value
        with self._changing(own):
            [code] = await self._ask_to_alter(ApiKey.INCREMENTAL_ALTER_CONFIGS, own.name, entries)
            self._check(code, own.name)
        own.overrides = _effective(after)
        await self._judge_own(own)

    async def _alter_what_is_wrong(self) -> None:
        own = await self._any_own()
        some, setting = ApiKey.INCREMENTAL_ALTER_CONFIGS, ("retention.ms", "70000", 0)
        wrong: list[tuple[int, int, str, list[tuple[str, str | None, int]], dict[str, Any]]] = [
            (Code.INVALID_REQUEST, some, own.name, [setting], {"times": 2}),
            (Code.INVALID_REQUEST, some, own.name, [setting, setting], {}),
            (Code.INVALID_REQUEST, some, own.name, [("retention.ms", None, 0)], {}),
            (Code.INVALID_REQUEST, some, own.name, [("retention.ms", "1", 9)], {}),
            (Code.INVALID_CONFIG, some, own.name, [("retention.ms", "1", 2)], {}),
            (Code.INVALID_CONFIG, some, own.name, [("retention.ms", "much", 0)], {}),
            (Code.INVALID_CONFIG, ApiKey.ALTER_CONFIGS, own.name, [("no.such", "1", 0)], {}),
            (
                Code.INVALID_REQUEST,
                ApiKey.ALTER_CONFIGS,
                "0",
                [setting],
                {"resource_type": ResourceType.BROKER},
            ),
            (Code.UNSUPPORTED_VERSION, some, "0", [setting], {"resource_type": ResourceType.GROUP}),
        ]
        code, key, name, entries, more = self._dice.choice(wrong)
        with self._changing(own):
            for found in await self._ask_to_alter(key, name, entries, **more):
                self._refused(found, f"a change of {name} to {entries}", code)
        await self._judge_own(own)

    async def _describe_settings(self) -> None:
        own = await self._any_own()
        settings = await self._settings_of(own.name)
        if settings is not None and not WITHOUT_EFFECT.keys() <= settings.keys():
            raise self._wrong(f"settings are not shown: {settings}")
        wanted = "retention.ms"
        [told] = await self._shown(ResourceType.TOPIC, self._site.topic, keys=[wanted])
        if not self._check(told.error_code, wanted, Code.UNKNOWN_TOPIC_OR_PARTITION):
            names = [setting.name for setting in told.configs]
            if names != [wanted]:
                raise self._wrong(f"{wanted} was asked for, and {names} are shown")
        broker = self._dice.choice(await self._living())
        [told] = await self._shown(ResourceType.BROKER, str(broker), at=broker)
        self._check(told.error_code, "settings of a broker")
        shown = {setting.name: setting.value for setting in told.configs}
        if shown.get("broker.id") != str(broker):
            raise self._wrong(f"broker {broker} shows {shown}")
        [told] = await self._shown(ResourceType.BROKER, "")
        self._check(told.error_code, "settings of all brokers")
        [told] = await self._shown(ResourceType.GROUP, self.name)
        self._check(told.error_code, "settings of a group")

    async def _describe_what_has_none(self) -> None:
        kind, name, code = self._dice.choice(
            (
                (ResourceType.BROKER, str(UNKNOWN), Code.INVALID_REQUEST),
                (16, "anything", Code.UNSUPPORTED_VERSION),
                (ResourceType.TOPIC, "never", Code.UNKNOWN_TOPIC_OR_PARTITION),
            )
        )
        [told] = await self._shown(kind, name)
        self._refused(told.error_code, f"settings of {name}", code)

    async def _list_resources(self) -> None:
        answer = await self._ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[])
        self._check(answer.error_code, "resources with settings")
        await self._ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[ResourceType.BROKER])

    # --- Deletion ----------------------------------------------------------------------------

    async def _ask_to_delete(
        self, name: str | None, topic_id: UUID | None = None, *, times: int = 1
    ) -> int:
        named = [
            kind_of(ApiKey.DELETE_TOPICS, "DeleteTopicState")(
                name=name, topic_id=NO_TOPIC_ID if topic_id is None else topic_id
            )
        ]
        answer = await self._ask(
            ApiKey.DELETE_TOPICS,
            least=6 if name is None or topic_id is not None else 0,
            topics=named * times,
            topic_names=[name or ""] * times,
            timeout_ms=TIMEOUT_MS,
        )
        [told] = answer.responses
        code: int = told.error_code
        return code

    async def _delete(self) -> None:
        while self._in_doubt:
            name = self._in_doubt[-1]
            code = await self._ask_to_delete(name)
            self._check(code, name, Code.UNKNOWN_TOPIC_OR_PARTITION)
            self._in_doubt.pop()
        if not self._own:
            return
        own = self._dice.choice(list(self._own.values()))
        with self._changing(own):
            if own.topic_id is not None and self._dice.random() < 0.5:
                code = await self._ask_to_delete(None, own.topic_id)
            else:
                code = await self._ask_to_delete(own.name)
            if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise self._wrong(f"{own} is there, and is not found")
            self._check(code, own.name)
        del self._own[own.name]
        self._judge_missing(own.name)

    async def _delete_what_is_wrong(self) -> None:
        name, topic_id, times, codes = self._dice.choice(
            (
                ("never", None, 1, {Code.UNKNOWN_TOPIC_OR_PARTITION}),
                ("never", None, 2, {Code.INVALID_REQUEST}),
                (None, _NOT_NAMED, 1, {Code.UNKNOWN_TOPIC_ID}),
                (None, None, 1, {Code.INVALID_REQUEST}),
                (self._site.topic, _NOT_NAMED, 1, {Code.INVALID_REQUEST}),
            )
        )
        code = await self._ask_to_delete(name, topic_id, times=times)
        self._refused(code, f"the deletion of {name}, {topic_id}", *codes)

    def _judge(self, error: MillraceError) -> None:
        if isinstance(error, UnknownServerError):
            raise self._wrong(f"it is told of an internal error: {error}")
        super()._judge(error)


def _operation(key: int, operation: int) -> dict[str, int]:
    has_one = key == ApiKey.INCREMENTAL_ALTER_CONFIGS
    return {"config_operation": operation} if has_one else {}


def _text(name: str, value: str) -> str:
    """Return a value of which the order of words does not count."""
    return ",".join(sorted(value.split(","))) if name == "cleanup.policy" else value


def _effective(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are kept."""
    return {
        name: _text(name, value) for name, value in settings.items() if name not in WITHOUT_EFFECT
    }
