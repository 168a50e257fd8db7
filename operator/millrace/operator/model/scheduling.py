"""The scheduling part of a pod's specification: typed, so that the API server refuses mistakes at
once, and so that its size and depth are bounded.

The names are Kubernetes' own: `kubectl explain pod.spec.affinity` says more.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

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

    key: LabelKey
    """Which label."""
    operator: LabelOperator
    """How its value is looked at."""
    values: Annotated[list[LabelValue], Meta(max_length=_VALUES_MAX)] = []
    """Values, of `In` and `NotIn`."""


class LabelSelector(_Part, frozen=True):
    """Which objects, by their labels: all requirements have to be met."""

    match_labels: Labels = {}
    """Labels with these values."""
    match_expressions: Annotated[list[LabelRequirement], Meta(max_length=_TERMS_MAX)] = []
    """What else must be."""


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

    key: LabelKey
    """Which label."""
    operator: NodeOperator
    """How its value is looked at."""
    values: Annotated[list[LabelValue], Meta(max_length=_VALUES_MAX)] = []
    """Values to look for."""


class NodeTerm(_Part, frozen=True):
    """Which nodes: all requirements have to be met."""

    match_expressions: Annotated[list[NodeRequirement], Meta(max_length=_TERMS_MAX)] = []
    """By labels."""
    match_fields: Annotated[list[NodeRequirement], Meta(max_length=_TERMS_MAX)] = []
    """By fields: `metadata.name`."""


class NodeSelector(_Part, frozen=True):
    """Which nodes: one of the terms has to fit."""

    node_selector_terms: Annotated[list[NodeTerm], Meta(min_length=1, max_length=_TERMS_MAX)]
    """The terms."""


class PreferredNodes(_Part, frozen=True):
    """Nodes that are better than others."""

    weight: Weight
    preference: NodeTerm
    """Which nodes."""


class NodeAffinity(_Part, frozen=True):
    """Nodes that pods run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """They run nowhere else."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes], Meta(max_length=_TERMS_MAX)
    ] = []
    """They run there if they can."""


class PodTerm(_Part, frozen=True):
    """Pods, and what counts as the same place."""

    topology_key: TopologyKey
    label_selector: LabelSelector | None = None
    """Which pods."""
    namespaces: Annotated[list[LabelValue], Meta(max_length=_TERMS_MAX)] = []
    """Of which namespaces. Unset: their own."""
    namespace_selector: LabelSelector | None = None
    """Of which namespaces, by labels."""
    match_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that have to be as the pod's own."""
    mismatch_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that must not be as the pod's own."""


class PreferredPods(_Part, frozen=True):
    """Pods that it is better to be near to, or far from."""

    weight: Weight
    pod_affinity_term: PodTerm
    """Which pods, and what is near."""


class PodAffinity(_Part, frozen=True):
    """Pods to be near to, or far from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodTerm], Meta(max_length=_TERMS_MAX)
    ] = []
    """It has to be so."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Meta(max_length=_TERMS_MAX)
    ] = []
    """It is so where it can be."""


class Affinity(_Part, frozen=True):
    """What pods are to run on, near to and far from."""

    node_affinity: NodeAffinity | None = None
    """Nodes to run on."""
    pod_affinity: PodAffinity | None = None
    """Pods to be near to."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to be far from."""


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

    key: LabelKey | None = None
    """Of the taint. Unset: any."""
    operator: Literal["Exists", "Equal"] | None = None
    """Unset: `Equal`."""
    value: LabelValue | None = None
    """Of the taint, with `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Of the taint. Unset: any."""
    toleration_seconds: int | None = None
    """How long a pod stays there. Unset: for ever."""


class SpreadConstraint(_Part, frozen=True):
    """How evenly pods are spread over places."""

    max_skew: Annotated[int, Meta(ge=1, le=1000)]
    """How many more one place may have than another."""
    topology_key: TopologyKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What becomes of a pod for which it cannot be so."""
    label_selector: LabelSelector | None = None
    """Which pods count."""
    min_domains: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """How many places there have to be at the least."""
    match_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that have to be as the pod's own."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes count that the affinity rules out."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes count whose taints are not tolerated."""
