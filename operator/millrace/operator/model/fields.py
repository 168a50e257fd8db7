"""Types of fields that several resources share, with the API server's checks of them."""

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from millrace.core.topics import NAMESPACE_LENGTH_MAX

DnsLabel = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", min_length=1, max_length=253)
]
"""The name of an object (RFC 1123)."""

PartName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=20)]
"""A name that is part of the names of pods."""

NamespaceName = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=NAMESPACE_LENGTH_MAX),
]
"""A namespace of Millrace, which is one of Kubernetes, too."""

VolumeName = Annotated[str, Meta(pattern=r"^[a-z0-9]+$", max_length=20)]
"""The name of a volume. Without a hyphen: claims are called `<volume>-<cluster>-<pool>-<number>`,
and volume `data-a` of cluster `b` must not take the claims of `data` of `a-b`.
"""

ImageName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", min_length=1, max_length=512)
]
"""An image: `registry.example.org/millrace:0.1.0`."""

ImageTag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", max_length=128)]
"""The tag of an image: `0.1.0`."""

Quantity = Annotated[
    int | str,
    Meta(
        extra_json_schema={
            "pattern": r"^([+]?[0-9]+(\.[0-9]+)?)(([KMGTPE]i)|[mkMGTPE]|([eE][0-9]+))?$",
            "maxLength": 32,
        }
    ),
]
"""An amount as Kubernetes writes it: `500m`, `10Gi`."""

LabelKey = Annotated[
    str,
    Meta(
        pattern=r"^([-.a-z0-9]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        max_length=317,
    ),
]
"""The name of a label: `topology.kubernetes.io/zone`."""

LabelValue = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)
]
"""The value of a label."""


class Rule(NamedTuple):
    """A check of a value by the API server, in CEL, and the message if it fails.

    A rule that names `oldSelf` is checked when the value changes.
    """

    rule: str
    message: str


class ClusterReference(Struct, frozen=True, kw_only=True, rename="camel"):
    """The cluster that a resource is about."""

    name: DnsLabel
    """Name of the Cluster."""
    namespace: DnsLabel | None = None
    """Namespace of the Cluster, whose `allowedTopics` has to allow this one. Unset: the resource's
    own."""
