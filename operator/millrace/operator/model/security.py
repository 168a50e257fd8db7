"""Parts of the resource `Cluster`: TLS on all listeners of its brokers, and who may do what."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from millrace.operator.model.fields import DnsLabel, Rule

TrustDomain = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=255)
]

Duration = Annotated[str, Meta(pattern=r"^([0-9]{1,6}[hms]){1,3}$", max_length=21)]
"""A time as cert-manager has it: `720h`, `1h30m`."""
ISSUED_FOR: Final = "720h"
"""How long a certificate counts that cert-manager is asked for, unless the Cluster says it."""
_ISSUED_FOR_IN_CEL: Final = f"duration(has(self.duration) ? self.duration : '{ISSUED_FOR}')"


class IssuerReference(Struct, frozen=True, kw_only=True, rename="camel"):
    """An issuer of cert-manager, as its Certificates name it."""

    name: DnsLabel
    """Name of the issuer."""
    kind: Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$", max_length=63)] = "Issuer"
    """`Issuer`: of the Cluster's own namespace. `ClusterIssuer`: of no namespace. Others are those
    of `group`."""
    group: DnsLabel = "cert-manager.io"
    """Whose kind it is: cert-manager's own, or that of an issuer from elsewhere."""


class TlsMode(StrEnum):
    """Whether connections have TLS; a running cluster goes from one to the next, and back."""

    DISABLED = "Disabled"
    OPTIONAL = "Optional"
    REQUIRED = "Required"


class AccessMode(StrEnum):
    """Whether callers are asked who they are; likewise."""

    DISABLED = "Disabled"
    LOGGED = "Logged"
    ENFORCED = "Enforced"


class Security(NamedTuple):
    """What a broker does, or is to do."""

    tls: TlsMode
    access: AccessMode


class Tls(Struct, frozen=True, kw_only=True, rename="camel"):
    """TLS for clients and between brokers. The operator is the authority, and renews everything
    while the brokers run. `{}` suffices.
    """

    RULES: ClassVar = (
        Rule(
            "has(self.issuerRef) || !has(self.duration) && !has(self.renewBefore)",
            "duration and renewBefore go with issuerRef: the operator's own certificates have times"
            " of their own",
        ),
        Rule(
            "!has(self.duration) || duration(self.duration) >= duration('1h')",
            "duration must be at least 1h: cert-manager issues none that is shorter",
        ),
        Rule(
            f"!has(self.renewBefore) || duration(self.renewBefore) < {_ISSUED_FOR_IN_CEL} && "
            "(duration(self.renewBefore) >= duration('192h') || "
            f"duration(self.renewBefore).getSeconds() * 5 >= {_ISSUED_FOR_IN_CEL}.getSeconds())",
            "renewBefore must be shorter than duration, and at least a fifth of it, or 192h: alerts"
            " tell of a certificate that has much less left",
        ),
        Rule(
            "self.trustDomain == oldSelf.trustDomain",
            "trustDomain cannot change: the brokers of a running cluster would not know each other",
        ),
    )

    mode: TlsMode = TlsMode.REQUIRED
    """`Required`: there is no other way to connect. `Optional`: the ports that there were stay in
    plain text, and others speak TLS, for clients that change to them one after the other.
    `Disabled`: everything is in plain text."""
    trust_domain: TrustDomain = "cluster.local"
    """Names of brokers in their certificates begin with it (SPIFFE). Another one than in other
    Kubernetes clusters tells brokers of the same name apart."""
    issuer_ref: IssuerReference | None = None
    """The issuer of cert-manager that signs what brokers show to clients. Between brokers the
    operator stays the authority. Unset: the operator signs for clients, too."""
    duration: Duration | None = None
    """How long a certificate of the issuer should count, as `720h`, which it is if unset."""
    renew_before: Duration | None = None
    """How long before its end it is renewed, as `240h`: a fifth of its time at least, or 192h.
    Unset: a third of it."""


def mode_of(tls: Tls | None) -> TlsMode:
    """Return whether connections have TLS; None: they do not."""
    return TlsMode.DISABLED if tls is None else tls.mode


class Access(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who calls the brokers, and what that caller may do. `{}` suffices."""

    mode: AccessMode = AccessMode.ENFORCED
    """`Enforced`: who may not do something is refused. `Logged`: what would be refused is done, and
    is in the brokers' audit logs. `Disabled`: nobody is asked."""
    authority: Literal["Kubernetes"] = "Kubernetes"
    """`Kubernetes`: ServiceAccounts call, by tokens for this cluster, and Kubernetes' roles say
    what they may do."""


class MetricsPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """The page of each broker that Prometheus reads."""

    token_secret: DnsLabel
    """Name of a Secret of this namespace, whose key `token` has what Prometheus must show, as by
    `authorization.credentials`. Another token counts within two minutes, and nothing restarts."""
