"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics and of brokers.

ListConfigResources says which of them there are.

All settings are shown, with their defaults, and none is a secret. Those of topics are changed by
`AlterTopics`; those of a broker are in its file, and are not changed by clients.

Source: KIP-133, KIP-226 (synonyms), KIP-248 and KIP-339 (incremental changes), KIP-569 (types and
documentation), KIP-1142 (lists); Kafka's `ConfigurationControlManager` and `ConfigAdminManager`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)

from millrace.broker.kafka.administration.topic_settings import (
    WITHOUT_EFFECT,
    ConfigSource,
    ConfigType,
    ShownSetting,
    is_list,
    shown,
    to_ours,
    type_of,
)
from millrace.broker.kafka.coordinators.coordination import GroupNames
from millrace.broker.kafka.own_calls import answers_of_each, refusal_in
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Encoded, Request, Served
from millrace.broker.kafka.wire.codec import ListEncoder
from millrace.broker.kafka.wire.errors import NO_ERROR, code_of
from millrace.broker.rpc.resources import topic_resource
from millrace.core.errors import (
    InvalidConfigError,
    MalformedRequestError,
    MessageTooLargeError,
    MillraceError,
    UnsupportedFeatureError,
)
from millrace.core.guard.access import Operation
from millrace.core.metadata.topic_config import SETTINGS
from millrace.core.problems import told
from millrace.core.settings import NamedSetting, named_values, to_text
from millrace.proto.v1 import cluster_pb2 as pb

_MINUTES: Final = ".minutes"
_MS_IN_MINUTE: Final = 60_000


_Change = pb.TopicChange | MillraceError | None
"""What is to be done for a resource: a change, a refusal, or nothing."""


class ResourceType(IntEnum):
    """Kafka's numbers of what has settings."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperation(IntEnum):
    """Kafka's numbers of the ways to change a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigRequests:
    """Answers requests about settings."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._groups = GroupNames(parts)
        self._of_broker = {name: setting for name, setting, _ in named_values(parts.broker.config)}

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.DESCRIBE_CONFIGS: Served(range(1, 5), self._describe),
            ApiKey.ALTER_CONFIGS: Served(range(3), self._alter),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(range(2), self._alter_some),
            ApiKey.LIST_CONFIG_RESOURCES: Served(range(2), self._list),
        }

    # --- DescribeConfigs ---------------------------------------------------------------------

    async def _describe(self, request: Request) -> Any:
        message = request.message
        topics = await self._topics(request)
        bytes_max = self._parts.broker.config.limits.message_bytes_max
        work = self._parts.broker.turns.work()
        answer = ListEncoder(DescribeConfigsResponse(), "results", request.version)
        # Each once, however often it is named: an answer is a thousand times as long as a name.
        named = {(entry.resource_type, entry.resource_name): entry for entry in message.resources}
        for resource in named.values():
            await work.give_way(len(SETTINGS))
            found: Sequence[ShownSetting] = ()
            refusal: MillraceError | None = None
            try:
                if answer.size > bytes_max:
                    raise MessageTooLargeError(
                        "the answer would have more bytes than the setting "
                        f"limits.message_bytes_max allows, {bytes_max}: ask for less at a time"
                    )
                if resource.resource_type == ResourceType.TOPIC:
                    found = shown(_found(topics[resource.resource_name]))
                elif resource.resource_type == ResourceType.BROKER:
                    found = await self._broker(resource.resource_name, request)
                elif resource.resource_type == ResourceType.GROUP:
                    found = await self._group(resource.resource_name, request)
                else:
                    raise _no_settings(resource.resource_type)
            except MillraceError as error:
                refusal = error
            wanted = resource.configuration_keys or None
            answer.add(
                DescribeConfigsResponse.DescribeConfigsResult(
                    error_code=NO_ERROR if refusal is None else code_of(refusal),
                    error_message=None if refusal is None else refusal.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        _described(setting, message)
                        for setting in found
                        if wanted is None or setting.name in wanted
                    ],
                )
            )
        return Encoded(answer.parts())

    async def _topics(self, request: Request) -> dict[str, pb.TopicMetadata | MillraceError]:
        """Return the topics of a request, or why one is not described, by the names in it."""
        names = dict.fromkeys(
            resource.resource_name
            for resource in request.message.resources
            if resource.resource_type == ResourceType.TOPIC
        )
        if not names:
            return {}
        call = pb.GetMetadataRequest(topics=map(self._parts.names.full, names))
        try:
            found = await self._parts.local.call("GetMetadata", call, request.caller)
        except MillraceError as error:
            return dict.fromkeys(names, error)
        return dict(zip(names, found.topics, strict=True))

    async def _broker(self, name: str, request: Request) -> list[ShownSetting]:
        """Return the settings of this broker.

        Raises:
            MalformedRequestError: another broker is asked for.
            MillraceError: the caller may not see them.
        """
        own_id = self._parts.addresses.own_id
        if not name:
            return []  # Settings that clients made for all brokers: there are none.
        if name != str(own_id):
            raise MalformedRequestError(
                f"this is broker {own_id}, and {name[:40]!r} is asked for: ask that one"
            )
        call = pb.DescribeBrokerConfigRequest()
        found = await self._parts.local.call("DescribeBrokerConfig", call, request.caller)
        settings = [
            *self._of_kafka(),
            *(
                setting
                for entry in found.config
                if (named := self._of_broker.get(entry.name)) is not None
                for setting in _of_broker(entry, named)
            ),
        ]
        by_name: dict[str, ShownSetting] = {}
        for setting in settings:  # Two of ours may stand for one of Kafka's.
            by_name.setdefault(setting.name, setting)
        return [setting for _, setting in sorted(by_name.items())]

    async def _group(self, name: str, request: Request) -> list[ShownSetting]:
        """Return what counts for the members of any group, also of one that there is not (KIP-848).

        Raises:
            MillraceError: the caller may not see the group.
        """
        await self._groups.full(name, Operation.DESCRIBE, request)
        config = self._parts.broker.config.groups
        return [
            ShownSetting(
                name=kafka,
                value=str(value),
                default=str(value),
                source=ConfigSource.DEFAULT,
                kind=ConfigType.INT,
                documentation=f"Millrace's `groups.{ours}` of the broker.",
                is_read_only=True,
            )
            for kafka, ours, value in (
                (
                    "consumer.heartbeat.interval.ms",
                    "heartbeat_interval_ms",
                    config.heartbeat_interval_ms,
                ),
                ("consumer.session.timeout.ms", "session_timeout_ms", config.session_timeout_ms),
            )
        ]

    def _of_kafka(self) -> Iterator[ShownSetting]:
        """Yield what tools look for in a broker of Kafka's."""
        own_id = str(self._parts.addresses.own_id)
        bytes_max = str(self._parts.broker.config.limits.message_bytes_max)
        place = self._parts.addresses.of(self._parts.addresses.own_id)
        for name, value, kind, meaning in (
            (
                "advertised.listeners",
                "" if place is None else "{}:{}".format(*place),
                ConfigType.STRING,
                "Where clients of this listener reach the broker.",
            ),
            ("broker.id", own_id, ConfigType.INT, "The broker's id."),
            ("node.id", own_id, ConfigType.INT, "The broker's id."),
            ("delete.topic.enable", "true", ConfigType.BOOLEAN, "Topics can be deleted."),
            (
                "message.max.bytes",
                bytes_max,
                ConfigType.INT,
                "Millrace's `limits.message_bytes_max`.",
            ),
        ):
            yield ShownSetting(
                name=name,
                value=value,
                default=value,
                source=ConfigSource.STATIC_BROKER,
                kind=kind,
                documentation=meaning,
                is_read_only=True,
            )

    async def _list(self, request: Request) -> Any:
        """Answer ListConfigResources: the topics that the caller sees, and the brokers."""
        caller = request.caller
        # The first version is about metrics of clients, of which there are no settings here.
        wanted = set(request.message.resource_types or ResourceType) if request.version else set()
        found: list[tuple[int, str]] = []
        if ResourceType.TOPIC in wanted:
            here = sorted(topic.name for topic in self._parts.topics.all())
            seen = await caller.seen(Operation.DESCRIBE, here, topic_resource)
            found += [(ResourceType.TOPIC, name.name) for name in seen]
        if ResourceType.BROKER in wanted:
            living = self._parts.addresses.living()
            found += [(ResourceType.BROKER, str(broker.broker_id)) for broker, _ in living]
        work = self._parts.broker.turns.work()
        answer = ListEncoder(ListConfigResourcesResponse(), "config_resources", request.version)
        for resource_type, name in found:
            await work.give_way()
            kind = ListConfigResourcesResponse.ConfigResource
            answer.add(kind(resource_type=resource_type, resource_name=name))
        return Encoded(answer.parts())

    # --- AlterConfigs ------------------------------------------------------------------------

    async def _alter(self, request: Request) -> Any:
        """Answer AlterConfigs: what is not named gets its default.

        All other settings are named to the controller: this broker may not know yet which of them
        the topic has.
        """

        def change(resource: Any, _: Mapping[str, str]) -> pb.TopicChange:
            ours = to_ours((entry.name, entry.value) for entry in resource.configs)
            return self._change(resource, {**dict.fromkeys(SETTINGS), **ours})

        changes = await self._changes(request, change)
        return AlterConfigsResponse(
            version=request.version,
            responses=await self._altered(request, changes, AlterConfigsResponse),
        )

    async def _alter_some(self, request: Request) -> Any:
        """Answer IncrementalAlterConfigs."""

        def change(resource: Any, before: Mapping[str, str]) -> pb.TopicChange:
            said = [_value_after(entry, before) for entry in resource.configs]
            return self._change(resource, to_ours(said))

        changes = await self._changes(request, change)
        return IncrementalAlterConfigsResponse(
            version=request.version,
            responses=await self._altered(request, changes, IncrementalAlterConfigsResponse),
        )

    async def _changes(
        self, request: Request, change: Callable[[Any, Mapping[str, str]], pb.TopicChange]
    ) -> list[_Change]:
        """Return the change of each resource, or why it is refused; None: nothing is to do.

        Args:
            change: returns the change of a topic, from its resource and, where that changes lists,
                the topic's settings.
        """
        resources = request.message.resources
        times = Counter((entry.resource_type, entry.resource_name) for entry in resources)
        refusals = [self._refusal(resource, times) for resource in resources]
        checked = [each for each, refusal in zip(resources, refusals, strict=True) if not refusal]
        lists = await self._decided(checked, request)
        changes: list[_Change] = []
        for resource, refusal in zip(resources, refusals, strict=True):
            try:
                if refusal is not None:
                    raise refusal
                if resource.resource_type == ResourceType.BROKER:
                    changes.append(None)
                    continue
                before: Mapping[str, str] = {}
                if (found := lists.get(resource.resource_name)) is not None:
                    if (refusal := refusal_in(found)) is not None:
                        raise refusal
                    before = {entry.name: entry.value for entry in found.topic.config}
                changes.append(change(resource, before))
            except MillraceError as error:
                changes.append(error)
        return changes

    def _refusal(self, resource: Any, times: Mapping[Any, int]) -> MillraceError | None:
        """Return why a resource cannot be changed as it is asked for.

        Args:
            resource: of a request.
            times: how often the request has each resource.
        """
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise MalformedRequestError("it is named twice in a request: name it once")
            if resource.resource_type == ResourceType.BROKER:
                _check_broker(resource)
            elif resource.resource_type == ResourceType.TOPIC:
                _check_entries(resource.configs)
                self._parts.names.topic(resource.resource_name)
            else:
                raise _no_settings(resource.resource_type)
        except MillraceError as error:
            return error
        return None

    async def _decided(self, resources: Iterable[Any], request: Request) -> dict[str, Any]:
        """Return the topics with changes of lists as the controller has them, or its refusals.

        What this broker knows may be older, and a list would lose what was added since. Of two
        clients that add at the same time the later one may still undo what the earlier one did.
        """
        names = [
            resource.resource_name
            for resource in resources
            if resource.resource_type == ResourceType.TOPIC
            and any(map(_changes_list, resource.configs))
        ]
        nothing = [pb.TopicChange(name=self._parts.names.full(name)) for name in names]
        found = await self._answers(nothing, request, validate_only=True)
        return dict(zip(names, found, strict=True))

    def _change(self, resource: Any, config: Mapping[str, str | None]) -> pb.TopicChange:
        return pb.TopicChange(
            name=self._parts.names.full(resource.resource_name),
            set_config={name: value for name, value in config.items() if value is not None},
            unset_config=[name for name, value in config.items() if value is None],
        )

    async def _altered(
        self, request: Request, changes: Sequence[_Change], response: Any
    ) -> list[Any]:
        """Alter topics; return what became of each resource."""
        message = request.message
        asked = [change for change in changes if isinstance(change, pb.TopicChange)]
        found = await self._answers(asked, request, validate_only=message.validate_only)
        answers = iter(found)
        results = []
        for resource, change in zip(message.resources, changes, strict=True):
            refusal = change if isinstance(change, MillraceError) else None
            if isinstance(change, pb.TopicChange):
                refusal = refusal_in(next(answers))
            results.append(
                response.AlterConfigsResourceResponse(
                    error_code=NO_ERROR if refusal is None else code_of(refusal),
                    error_message=None if refusal is None else refusal.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return results

    async def _answers(
        self, changes: Sequence[pb.TopicChange], request: Request, *, validate_only: bool
    ) -> list[Any]:
        """Return the controller's result of each change, or why it was not asked."""

        async def alter(topics: Sequence[pb.TopicChange]) -> Sequence[Any]:
            call = pb.AlterTopicsRequest(topics=topics, validate_only=validate_only)
            found = await self._parts.local.call("AlterTopics", call, request.caller)
            return list(found.results)

        return await answers_of_each(changes, alter)


def _found(topic: pb.TopicMetadata | MillraceError) -> pb.TopicMetadata:
    """Return a topic that is described.

    Raises:
        MillraceError: it is not.
    """
    if (refusal := refusal_in(topic)) is not None:
        raise refusal
    assert isinstance(topic, pb.TopicMetadata)
    return topic


def _no_settings(resource_type: int) -> MillraceError:
    return UnsupportedFeatureError(
        f"resources of the type {resource_type} have no settings here that are changed or shown "
        f"in this way: topics ({int(ResourceType.TOPIC)}) and brokers ({int(ResourceType.BROKER)}) "
        "have"
    )


def _check_broker(resource: Any) -> None:
    """Check what a client wants to change of a broker: nothing but what was never set.

    Kafka's tool for reassignments takes throttles back that it has not set.

    Raises:
        MalformedRequestError: something else.
    """
    for entry in resource.configs:
        operation = getattr(entry, "config_operation", ConfigOperation.SET)
        if operation != ConfigOperation.DELETE:
            raise MalformedRequestError(
                f"{told(entry.name)}: settings of a broker are in its file: change them there"
            )


def _check_entries(entries: Iterable[Any]) -> None:
    """Check what a client wants to change.

    Raises:
        MalformedRequestError: a setting is named twice, or has no value.
    """
    twice = [name for name, times in Counter(entry.name for entry in entries).items() if times > 1]
    if twice:
        raise MalformedRequestError(f"{told(twice[0])}: it is named twice: name it once")
    for entry in entries:
        operation = getattr(entry, "config_operation", ConfigOperation.SET)
        if entry.value is None and operation != ConfigOperation.DELETE:
            raise MalformedRequestError(f"{told(entry.name)}: a value is missing")


def _changes_list(entry: Any) -> bool:
    """Whether a change adds to a list, or takes away from it."""
    operation = getattr(entry, "config_operation", ConfigOperation.SET)
    is_of_lists = operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT)
    return is_of_lists and is_list(entry.name) and entry.name not in WITHOUT_EFFECT


def _value_after(entry: Any, before: Mapping[str, str]) -> tuple[str, str | None]:
    """Return a setting and its value after a change; None: its default.

    Args:
        entry: of a request.
        before: the topic's settings, if the change is one of a list with an effect.

    Raises:
        MalformedRequestError: the change is none that Kafka has.
        InvalidConfigError: the setting is no list.
    """
    name, operation = entry.name, entry.config_operation
    if operation == ConfigOperation.SET:
        return name, entry.value
    if operation == ConfigOperation.DELETE:
        return name, None
    if operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise MalformedRequestError(f"{told(name)}: there is no operation {operation}")
    if not is_list(name):
        raise InvalidConfigError(f"{told(name)}: it is no list, and can only be set and deleted")
    values = before[name].split(",") if name in before else []
    words = [word.strip() for word in entry.value.split(",")]
    if operation == ConfigOperation.APPEND:
        return name, ",".join(dict.fromkeys([*values, *words]))
    return name, ",".join(word for word in values if word not in words)


def _of_broker(entry: pb.ConfigEntry, setting: NamedSetting) -> Iterator[ShownSetting]:
    """Yield a setting of a broker under its own name, and under Kafka's if it has one."""
    default = "" if setting.default is MISSING else to_text(setting.default)
    is_default = entry.source == pb.CONFIG_SOURCE_DEFAULT
    kafka = setting.description.kafka
    for name in (entry.name, kafka) if kafka else (entry.name,):
        in_minutes = name.endswith(_MINUTES)
        yield ShownSetting(
            name=name,
            value=_minutes(entry.value) if in_minutes else entry.value,
            default=_minutes(default) if in_minutes else default,
            source=ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER,
            kind=type_of(setting),
            documentation=setting.description.documentation,
            is_read_only=True,
        )


def _minutes(ms: str) -> str:
    return str(int(ms) // _MS_IN_MINUTE) if ms.isdigit() else ms


def _described(setting: ShownSetting, message: Any) -> Any:
    kind = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    values = {ConfigSource.DEFAULT: setting.default, setting.source: setting.value}
    return kind(
        name=setting.name,
        value=setting.value,
        read_only=setting.is_read_only,
        config_source=setting.source,
        is_sensitive=False,
        synonyms=[
            kind.DescribeConfigsSynonym(name=setting.name, value=values[source], source=source)
            for source in sorted(values)
            if message.include_synonyms
        ],
        config_type=setting.kind,
        documentation=setting.documentation if message.include_documentation else None,
    )
