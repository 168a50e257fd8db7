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
Weight = Annotated[int, Meta(ge=1, le=100, description="How much it counts, beside the others.")]
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
    """How the label is compared with the values."""
    values: Annotated[list[LabelValue], Meta(max_length=_VALUES_MAX)] = []
    """The values, for `In` and `NotIn`."""


class LabelSelector(_Part, frozen=True):
    """Which objects, by their labels: all requirements have to be met."""

    match_labels: Labels = {}
    """Labels with these values."""
    match_expressions: Annotated[list[LabelRequirement], Meta(max_length=_TERMS_MAX)] = []
    """Further requirements."""


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
    """How the label is compared with the values."""
    values: Annotated[list[LabelValue], Meta(max_length=_VALUES_MAX)] = []
    """The values to compare with."""


class NodeTerm(_Part, frozen=True):
    """Which nodes: all requirements have to be met."""

    match_expressions: Annotated[list[NodeRequirement], Meta(max_length=_TERMS_MAX)] = []
    """Requirements for labels of the node."""
    match_fields: Annotated[list[NodeRequirement], Meta(max_length=_TERMS_MAX)] = []
    """Requirements for fields of the node: `metadata.name`."""


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
    """The pods run nowhere else."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes], Meta(max_length=_TERMS_MAX)
    ] = []
    """The pods run there if they can."""


class PodTerm(_Part, frozen=True):
    """Pods, and what counts as the same place."""

    topology_key: TopologyKey
    label_selector: LabelSelector | None = None
    """Which pods."""
    namespaces: Annotated[list[LabelValue], Meta(max_length=_TERMS_MAX)] = []
    """Namespaces of these pods. Unset: the namespace of the pod itself."""
    namespace_selector: LabelSelector | None = None
    """Labels of further namespaces of these pods."""
    match_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that must have the same values as those of the pod itself."""
    mismatch_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that must have other values than those of the pod itself."""


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
    """The pod runs nowhere else."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Meta(max_length=_TERMS_MAX)
    ] = []
    """The pod runs there if it can."""


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
    """The key of the taint. Unset: any."""
    operator: Literal["Exists", "Equal"] | None = None
    """Unset: `Equal`."""
    value: LabelValue | None = None
    """The value of the taint, with `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. Unset: any."""
    toleration_seconds: int | None = None
    """How many seconds a pod stays on a node that gets the taint. Unset: for ever."""


class SpreadConstraint(_Part, frozen=True):
    """How evenly pods are spread over places."""

    max_skew: Annotated[int, Meta(ge=1, le=1000)]
    """How many more one place may have than another."""
    topology_key: TopologyKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What happens to a pod for which no place is even enough."""
    label_selector: LabelSelector | None = None
    """Which pods count."""
    min_domains: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """How many places there have to be at the least."""
    match_label_keys: Annotated[list[LabelKey], Meta(max_length=_TERMS_MAX)] = []
    """Labels that must have the same values as those of the pod itself."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes count that the affinity rules out."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes count whose taints are not tolerated."""
