"""The definitions of `Cluster`, `Topic` and `Quota`, with the settings of brokers and topics."""

from enum import StrEnum
from typing import Any

from millrace.core import settings
from millrace.core.broker_config import BrokerConfig
from millrace.core.metadata.topic_config import SEPARATOR, TopicConfig
from millrace.core.settings import INT64_MAX, NamedSetting, Setting, Unit
from millrace.core.topics import NAME_LENGTH_MAX
from millrace.operator.model.cluster import ClusterSpec
from millrace.operator.model.fields import Rule
from millrace.operator.model.quota import QuotaSpec
from millrace.operator.model.schema import Schema, definition, structural_schema
from millrace.operator.model.security import AccessMode, TlsMode
from millrace.operator.model.topic import MEDIA_SETTING, TopicSpec

CLUSTER_NAME_MAX = 30
"""Longest name of a Cluster: with a pool's and a number it is still the name of a host."""


_NOT_WITH_A_UNIT = {
    Unit.BYTES: "must be a size: a number of bytes, or one with its unit, as 64Mi, 64MiB or 64MB",
    Unit.MILLISECONDS: "must be a time: a number of milliseconds, or one with its unit, as 90s, "
    "1h30m or 7d",
}
"""Refusals of a text that is not a size or a time, by the unit of the setting."""

OPERATOR_SECTIONS = frozenset({"node", "coordination", "listeners", "access"})
"""Sections of a broker's settings that only the operator sets."""
_OPERATOR_SETTINGS = {
    "metrics": ("host", "port", "tls_certificate_file", "tls_key_file", "token_file")
}
"""Those that only the operator sets in other sections."""


_STEPS = (
    Rule(
        "!has(self.spec.tls) || self.spec.tls.mode != 'Required' || "
        "has(oldSelf.spec.tls) && oldSelf.spec.tls.mode == 'Required' || "
        "!has(oldSelf.status) || !has(oldSelf.status.security) || "
        "oldSelf.status.security.tls != 'Disabled'",
        "clients connect in plain text: set tls.mode to Optional first, and to Required when "
        "status.security.tls is Optional and all of them have changed to TLS",
    ),
    Rule(
        "!has(self.spec.tls) || self.spec.tls.mode != 'Disabled' || "
        "has(oldSelf.spec.tls) && oldSelf.spec.tls.mode == 'Disabled' || "
        "!has(oldSelf.status) || !has(oldSelf.status.security) || "
        "oldSelf.status.security.tls != 'Required'",
        "clients connect by TLS: set tls.mode to Optional first, and to Disabled when "
        "status.security.tls is Optional and all of them have changed to plain text",
    ),
    Rule(
        "!has(self.spec.access) || self.spec.access.mode != 'Enforced' || "
        "has(oldSelf.spec.access) && oldSelf.spec.access.mode == 'Enforced' || "
        "!has(oldSelf.status) || !has(oldSelf.status.security) || "
        "oldSelf.status.security.access != 'Disabled'",
        "clients may do everything: set access.mode to Logged first, and to Enforced when "
        "status.security.access is Logged and the audit logs name none of them any more",
    ),
    Rule(
        "!has(self.spec.access) || self.spec.access.mode == 'Disabled' || has(self.spec.tls) || "
        "has(oldSelf.spec.access) && oldSelf.spec.access.mode == self.spec.access.mode && "
        "!has(oldSelf.spec.tls) || !has(oldSelf.status) || !has(oldSelf.status.security) || "
        "oldSelf.status.security.tls != 'Disabled'",
        "clients connect in plain text, by which no token is sent: set tls.mode to Optional, too",
    ),
    Rule(
        "(has(self.spec.tls) && has(self.spec.tls.issuerRef)) == "
        "(has(oldSelf.spec.tls) && has(oldSelf.spec.tls.issuerRef)) || !has(oldSelf.status) || "
        "!has(oldSelf.status.security) || oldSelf.status.security.tls == 'Disabled'",
        "tls.issuerRef can be neither added nor taken away while brokers have TLS: clients would "
        "not trust the other authority. It may name another issuer; or change it while "
        "status.security.tls is Disabled",
    ),
)
"""Checks between a Cluster as it is, and as it is to be: nobody is cut off by one change.

They hold for each write, so what a Cluster has said already passes: its status can be written.
"""

_POOL_NAME = Rule(
    "self.spec.pools.all(p, p.name != 'ca') || (has(self.spec.tls) ? "
    "self.spec.tls.mode == 'Disabled' : has(self.status) && has(self.status.security) && "
    "self.status.security.tls == 'Disabled')",
    "a pool cannot be called ca where brokers have TLS: the ConfigMap <cluster>-ca has their "
    "authorities; give it another name",
)
"""A Cluster that says nothing of TLS has it, unless its brokers are in plain text already."""

_READY_COLUMNS = (
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def topic_definition() -> Schema:
    """Return the definition of `Topic`."""
    schema = definition(
        kind="Topic",
        plural="topics",
        short_name="mrt",
        description="A topic of a Millrace cluster, called <namespace>/<name> there.",
        spec=structural_schema(TopicSpec, {"config": _topic_settings_schema()}),
        status={
            "topicName": _text("The topic's name in the cluster."),
            "topicId": _text("Identity of the topic: one that was made again has another."),
            "partitions": _number("How many partitions the topic has."),
            "replicas": _number("How many brokers hold each partition."),
            "moving": _number("Partitions whose replicas are being moved."),
        },
        columns=[
            ("Cluster", "string", ".spec.clusterRef.name"),
            ("Partitions", "integer", ".status.partitions"),
            ("Replicas", "integer", ".status.replicas"),
            *_READY_COLUMNS,
        ],
    )
    schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = [
        {
            "rule": f"has(self.spec.topicName) || self.metadata.name.size() <= {NAME_LENGTH_MAX}",
            "message": f"the name is too long for a topic: at most {NAME_LENGTH_MAX}; choose a "
            "shorter one, or set spec.topicName",
        }
    ]
    return schema


def quota_definition() -> Schema:
    """Return the definition of `Quota`."""
    rate = {"type": "integer", "format": "int64"}
    return definition(
        kind="Quota",
        plural="quotas",
        short_name="mrq",
        description="A limit for clients or topics of a Millrace cluster, called "
        "<namespace>/<name> there.",
        spec=structural_schema(QuotaSpec, {}),
        status={
            "quotaName": _text("The quota's name in the cluster."),
            "subject": _text("Whom it is for, in words."),
            "use": {
                "description": "What is used of it now, rounded to two digits; measured every "
                "few seconds.",
                "type": "object",
                "properties": {
                    "summary": _text("All of it, in words."),
                    "produceBytesPerSecond": {
                        **rate,
                        "description": "The sum over all brokers; only where the quota has this "
                        "limit.",
                    },
                    "fetchBytesPerSecond": {
                        **rate,
                        "description": "The sum over all brokers; only where the quota has this "
                        "limit.",
                    },
                    "requestPercent": _number(
                        "Share of one processor, at the broker with the most; only where the "
                        "quota has this limit."
                    ),
                },
            },
            "throttled": _number(
                "How many clients or topics it delays now, of those that it counts apart."
            ),
            "longestDelays": {
                "description": "Those that are delayed most.",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "subject": _text("Who is delayed."),
                        "delayMs": {
                            "description": "For how long, in milliseconds, at the broker with the "
                            "longest delay.",
                            "type": "integer",
                            "format": "int64",
                        },
                    },
                },
            },
        },
        columns=[
            ("Cluster", "string", ".spec.clusterRef.name"),
            ("For", "string", ".status.subject"),
            ("Produce", "string", ".spec.produceBytesPerSecond"),
            ("Fetch", "string", ".spec.fetchBytesPerSecond"),
            ("Use", "string", ".status.use.summary"),
            ("Throttled", "integer", ".status.throttled"),
            *_READY_COLUMNS,
        ],
    )


def cluster_definition() -> Schema:
    """Return the definition of `Cluster`; users set brokers' settings by section."""
    sections = {
        name: settings_schema(section) | {"description": _first_line(section)}
        for name, section in settings.sections_of(BrokerConfig).items()
        if name not in OPERATOR_SECTIONS
    }
    for section, names in _OPERATOR_SETTINGS.items():
        for name in names:
            del sections[section]["properties"][name]
    schema = definition(
        kind="Cluster",
        plural="clusters",
        short_name="mrc",
        description="A Millrace cluster: brokers in pools, their volumes and settings.",
        spec=structural_schema(ClusterSpec, {"config": {"type": "object", "properties": sections}}),
        status={
            "brokers": _number("Brokers that should be there."),
            "version": _text(
                "Release that the brokers run, by the tag of their image; all of "
                "them while another one is rolled out."
            ),
            "readyBrokers": _number("Brokers that are ready."),
            "clusterId": _text("Identity of the cluster."),
            "controller": _text("The broker that is the controller now."),
            "leaving": {
                "description": "Brokers that are to go, and give up what they hold.",
                "type": "array",
                "items": {"type": "string"},
            },
            "bootstrap": _text("Where clients in this Kubernetes cluster connect first."),
            "tlsBootstrap": _text(
                "Where they connect first by TLS, while the other address is in plain text."
            ),
            "kafkaBootstrap": _text(
                "Where clients of Kafka in this Kubernetes cluster connect first."
            ),
            "kafkaTlsBootstrap": _text(
                "Where they connect first by TLS, while the other address is in plain text."
            ),
            "outsideBootstrap": _text("Where clients outside of it connect first."),
            "outsideTlsBootstrap": _text(
                "Where they connect first by TLS, while the other address is in plain text."
            ),
            "outsideKafkaBootstrap": _text("Where clients of Kafka outside of it connect first."),
            "outsideKafkaTlsBootstrap": _text(
                "Where they connect first by TLS, while the other address is in plain text."
            ),
            "authorities": _text(
                "Certificates of the authorities that clients trust, as PEM; the ConfigMap "
                "<cluster>-ca has them, too."
            ),
            "security": {
                "description": "What all brokers do by now.",
                "type": "object",
                "properties": {
                    "tls": {"type": "string", "enum": list(TlsMode)},
                    "access": {"type": "string", "enum": list(AccessMode)},
                },
            },
        },
        columns=[
            ("Brokers", "integer", ".status.brokers"),
            ("Up", "integer", ".status.readyBrokers"),
            ("Version", "string", ".status.version"),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Healthy", "string", ".status.conditions[?(@.type=='Healthy')].status"),
            ("Rolled Out", "string", ".status.conditions[?(@.type=='RolledOut')].status"),
            ("TLS", "string", ".status.security.tls"),
            ("Access", "string", ".status.security.access"),
            ("Bootstrap", "string", ".status.bootstrap"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ],
    )
    root = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["x-kubernetes-validations"] = [
        {
            "rule": f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && "
            f"self.metadata.name.size() <= {CLUSTER_NAME_MAX}",
            "message": f"the name must be at most {CLUSTER_NAME_MAX} of a-z, 0-9 and -, and begin "
            "with a letter: pods and hosts are called after it",
        },
        *(rule._asdict() for rule in (_POOL_NAME, *_STEPS)),
    ]
    return schema


def _topic_settings_schema() -> Schema:
    schema = settings_schema(TopicConfig, separator=SEPARATOR, explains=True)
    del schema["properties"][MEDIA_SETTING]  # It is `spec.media`: there is one way to say it.
    return schema


def settings_schema(cls: type, *, separator: str = "_", explains: bool = False) -> Schema:
    """Return the schema of a class of settings, typed one by one.

    Args:
        explains: refusals of sizes and times say what to write. The API server bounds the cost of
            all such rules of a definition, and counts 3 MB for each text; there is room for some
            twenty. Other refusals quote a regular expression.
    """
    return {
        "type": "object",
        "properties": {
            name: _setting_schema(setting, explains=explains)
            for name, setting in settings.settings_of(cls, separator=separator).items()
        },
    }


def _setting_schema(setting: NamedSetting, *, explains: bool) -> Schema:
    description = setting.description
    default = f" Default: {settings.to_text(setting.default) or 'empty'}."
    schema: dict[str, Any] = {"description": description.documentation + default}
    if setting.kind is bool:
        return {**schema, "type": "boolean"}
    if issubclass(setting.kind, StrEnum):
        return {**schema, "type": "string", "enum": list(setting.kind)}
    if setting.kind is float:
        return {
            **schema,
            "type": "number",
            "minimum": description.minimum,
            "maximum": description.maximum,
        }
    if setting.kind is not int:
        return {**schema, "type": "string", "maxLength": 1024}
    bounds = _bounds(description)
    if description.minus_one:
        schema["description"] += f" -1: {description.minus_one}."
    if description.unit is Unit.COUNT:
        return {**schema, "type": "integer", "format": "int64", **bounds}
    written = description.unit.pattern
    pattern = f"^(-1|{written})$" if description.minus_one else f"^({written})$"
    schema = {**schema, "x-kubernetes-int-or-string": True, **bounds, "maxLength": 32}
    if not explains:
        return {**schema, "pattern": pattern}
    minus_one = f", or -1: {description.minus_one}" if description.minus_one else ""
    rule = Rule(
        f"type(self) == int || self.matches('{pattern}')",
        f"{_NOT_WITH_A_UNIT[description.unit]}{minus_one}",
    )
    return {
        **schema,
        "x-kubernetes-validations": [
            *bounds.get("x-kubernetes-validations", ()),
            rule._asdict(),
        ],
    }


def _bounds(description: Setting) -> Schema:
    """Return the bounds of a number; only the operator can check those of a text with a unit."""
    low = description.minimum
    bounds: Schema = {"minimum": min(low, -1) if description.minus_one else low}
    if description.maximum < INT64_MAX:
        bounds["maximum"] = description.maximum
    # Else none: the API server takes bounds as floating point, where this one would overflow.
    if description.minus_one and low > 0:
        unit = f" {description.unit.label}" if description.unit.label else ""
        message = f"must be at least {low}{unit}, or -1: {description.minus_one}"
        rule = f"type(self) != int || self == -1 || self >= {low}"
        bounds["x-kubernetes-validations"] = [Rule(rule, message)._asdict()]
    return bounds


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _text(description: str) -> Schema:
    return {"description": description, "type": "string"}


def _number(description: str) -> Schema:
    return {"description": description, "type": "integer"}
