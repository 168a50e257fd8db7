"""The scheduling part of a pod's specification: typed, so that the API server refuses mistakes at
once, and so that its size and depth are bounded.

The names are Kubernetes' own: `kubectl explain pod.spec.affinity` says more.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from millrace.operator.model.fields import LabelKey, LabelValue, Rule

_TERMS_MAX = 32
_VALUES_MAX = 64

Labels = Annotated[dict[str, LabelValue], Meta(max_length=32)]
Weight = Annotated[int, Meta(ge=1, le=100, description="How much it counts.")]
TopologyKey = Annotated[
    LabelKey, Meta(description="Label of nodes: those with equal values are one place.")
]


class _Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a pod's specification: unset fields are left out."""


class LabelOperator(StrEnum):
    """How a requirement reads a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class LabelRequirement(_Part, frozen=True):
    """A requirement for a label."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values; Exists and DoesNotExist go without",
        ),
    )

    key: Annotated[LabelKey, Meta(description="Which label.")]
    operator: Annotated[LabelOperator, Meta(description="How its value is looked at.")]
    values: Annotated[
        list[LabelValue], Meta(description="Values, of `In` and `NotIn`.", max_length=_VALUES_MAX)
    ] = field(default_factory=list)


class LabelSelector(_Part, frozen=True):
    """Which objects, by their labels: all requirements have to be met."""

    match_labels: Annotated[Labels, Meta(description="Labels with these values.")] = field(
        default_factory=dict
    )
    match_expressions: Annotated[
        list[LabelRequirement], Meta(description="What else must be.", max_length=_TERMS_MAX)
    ] = field(default_factory=list)


class NodeOperator(StrEnum):
    """How a requirement reads a label, or a field, of a node."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class NodeRequirement(_Part, frozen=True):
    """A requirement for a label of a node."""

    key: Annotated[LabelKey, Meta(description="Which label.")]
    operator: Annotated[NodeOperator, Meta(description="How its value is looked at.")]
    values: Annotated[
        list[LabelValue], Meta(description="Values to look for.", max_length=_VALUES_MAX)
    ] = field(default_factory=list)


class NodeTerm(_Part, frozen=True):
    """Which nodes: all requirements have to be met."""

    match_expressions: Annotated[
        list[NodeRequirement], Meta(description="By labels.", max_length=_TERMS_MAX)
    ] = field(default_factory=list)
    match_fields: Annotated[
        list[NodeRequirement],
        Meta(description="By fields: `metadata.name`.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)


class NodeSelector(_Part, frozen=True):
    """Which nodes: one of the terms has to fit."""

    node_selector_terms: Annotated[
        list[NodeTerm], Meta(description="The terms.", min_length=1, max_length=_TERMS_MAX)
    ]


class PreferredNodes(_Part, frozen=True):
    """Nodes that are better than others."""

    weight: Weight
    preference: Annotated[NodeTerm, Meta(description="Which nodes.")]


class NodeAffinity(_Part, frozen=True):
    """Nodes that pods run on."""

    required_during_scheduling_ignored_during_execution: Annotated[
        NodeSelector | None, Meta(description="They run nowhere else.")
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes],
        Meta(description="They run there if they can.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)


class PodTerm(_Part, frozen=True):
    """Pods, and what counts as the same place."""

    topology_key: TopologyKey
    label_selector: Annotated[LabelSelector | None, Meta(description="Which pods.")] = None
    namespaces: Annotated[
        list[LabelValue],
        Meta(description="Of which namespaces. Unset: their own.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)
    namespace_selector: Annotated[
        LabelSelector | None, Meta(description="Of which namespaces, by labels.")
    ] = None
    match_label_keys: Annotated[
        list[LabelKey],
        Meta(description="Labels that have to be as the pod's own.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)
    mismatch_label_keys: Annotated[
        list[LabelKey],
        Meta(description="Labels that must not be as the pod's own.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)


class PreferredPods(_Part, frozen=True):
    """Pods that it is better to be near to, or far from."""

    weight: Weight
    pod_affinity_term: Annotated[PodTerm, Meta(description="Which pods, and what is near.")]


class PodAffinity(_Part, frozen=True):
    """Pods to be near to, or far from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodTerm], Meta(description="It has to be so.", max_length=_TERMS_MAX)
    ] = field(default_factory=list)
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Meta(description="It is so where it can be.", max_length=_TERMS_MAX)
    ] = field(default_factory=list)


class Affinity(_Part, frozen=True):
    """What pods are to run on, near to and far from."""

    node_affinity: Annotated[NodeAffinity | None, Meta(description="Nodes to run on.")] = None
    pod_affinity: Annotated[PodAffinity | None, Meta(description="Pods to be near to.")] = None
    pod_anti_affinity: Annotated[PodAffinity | None, Meta(description="Pods to be far from.")] = (
        None
    )


class Toleration(_Part, frozen=True):
    """Taints of nodes that pods tolerate."""

    RULES: ClassVar = (
        Rule(
            "!has(self.value) || !has(self.operator) || self.operator == 'Equal'",
            "value goes with operator: Equal, and only with that",
        ),
        Rule(
            "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            "without a key the operator must be Exists: all taints are tolerated",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds goes with effect: NoExecute, and only with that",
        ),
    )

    key: Annotated[LabelKey | None, Meta(description="Of the taint. Unset: any.")] = None
    operator: Annotated[Literal["Exists", "Equal"] | None, Meta(description="Unset: `Equal`.")] = (
        None
    )
    value: Annotated[LabelValue | None, Meta(description="Of the taint, with `Equal`.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Of the taint. Unset: any."),
    ] = None
    toleration_seconds: Annotated[
        int | None, Meta(description="How long a pod stays there. Unset: for ever.")
    ] = None


class SpreadConstraint(_Part, frozen=True):
    """How evenly pods are spread over places."""

    max_skew: Annotated[
        int, Meta(ge=1, le=1000, description="How many more one place may have than another.")
    ]
    topology_key: TopologyKey
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"],
        Meta(description="What becomes of a pod for which it cannot be so."),
    ]
    label_selector: Annotated[LabelSelector | None, Meta(description="Which pods count.")] = None
    min_domains: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="How many places there have to be at the least."),
    ] = None
    match_label_keys: Annotated[
        list[LabelKey],
        Meta(description="Labels that have to be as the pod's own.", max_length=_TERMS_MAX),
    ] = field(default_factory=list)
    node_affinity_policy: Annotated[
        Literal["Honor", "Ignore"] | None,
        Meta(description="Whether nodes count that the affinity rules out."),
    ] = None
    node_taints_policy: Annotated[
        Literal["Honor", "Ignore"] | None,
        Meta(description="Whether nodes count whose taints are not tolerated."),
    ] = None
