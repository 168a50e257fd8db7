"""Types of fields that several resources share, with what the API server checks of them."""

from typing import Annotated, Any, NamedTuple

from msgspec import Meta

DnsLabel = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", min_length=1, max_length=253)
]
"""The name of an object (RFC 1123)."""

PartName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=20)]
"""A name that is part of the names of pods and claims."""

Text = Annotated[str, Meta(min_length=1, max_length=512)]
"""A text that nothing is known of but that it ends."""

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

Anything = Annotated[
    dict[str, Any], Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})
]
"""A part of a pod's specification, which Kubernetes checks when the pod is made."""


class Rule(NamedTuple):
    """What the API server checks of a value, in CEL, and what it says where that does not hold.

    A rule that names `oldSelf` is checked when the value changes.
    """

    rule: str
    message: str
