"""Parts of the resource `Cluster`: TLS on all listeners of its brokers, and who may do what."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from millrace.operator.model.fields import Rule

TrustDomain = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=255)
]


class Tls(Struct, frozen=True, kw_only=True, rename="camel"):
    """TLS for clients and between brokers. The operator is the authority, and renews everything
    while the brokers run. `{}` suffices.
    """

    RULES: ClassVar = (
        Rule(
            "self.trustDomain == oldSelf.trustDomain",
            "trustDomain cannot change: the brokers of a running cluster would not know each other",
        ),
    )

    trust_domain: TrustDomain = "cluster.local"
    """Names of brokers in their certificates begin with it (SPIFFE). Another one than in other
    Kubernetes clusters tells brokers of the same name apart."""


class Access(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who calls the brokers, and what that caller may do. `{}` suffices."""

    authority: Literal["Kubernetes"] = "Kubernetes"
    """`Kubernetes`: ServiceAccounts call, by tokens for this cluster, and Kubernetes' roles say
    what they may do."""
