"""What became of the certificate that cert-manager is asked for.

Clients trust what the issuer says its authority is. When that changes, the earlier one is trusted
for a while beside it, in which pods get the new certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.operator.model.conditions import Condition, Reason
from millrace.operator.model.issued import certificate_name
from millrace.operator.model.objects import Document
from millrace.operator.model.security import IssuerReference

CERTIFIED_CONDITION: Final = "Certified"


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificate in the Secret.

    Attributes:
        hosts: that it names.
        ends: for people.
    """

    hosts: frozenset[str]
    ends: str


def condition(
    cluster_name: str,
    made: Document,
    shown: Shown | None,
    *,
    wanted: frozenset[str],
    has_authority: bool,
) -> Condition:
    """Return whether brokers have the certificate that they should have.

    Args:
        made: the Certificate.
        shown: what is in its Secret; None: there is none.
        wanted: names that it has to have.
        has_authority: whether the Secret has the issuer's.
    """
    name = certificate_name(cluster_name)
    is_issued = ready_since(made) is not None
    failed = (made.get("status") or {}).get("lastFailureTime")
    if shown is not None and not has_authority:
        return Condition(
            CERTIFIED_CONDITION,
            False,
            Reason.NO_AUTHORITY,
            f"the Secret of Certificate {name} has no ca.crt, so that nobody can be told whom to "
            "trust: name an issuer that says its authority there, as those by a CA do",
        )
    if is_issued and shown is not None and wanted <= shown.hosts and not failed:
        return Condition(
            CERTIFIED_CONDITION,
            True,
            Reason.ISSUED,
            f"brokers have a certificate until {shown.ends}",
        )
    told = _message(made, "Issuing") or _message(made, "Ready") or "cert-manager has yet to see it"
    if is_issued and shown is not None and (lacking := sorted(wanted - shown.hosts)):
        told = f"the issuer has left out the names {', '.join(lacking)}"
    advice = f"`kubectl describe certificate {name}` says more"
    return Condition(
        CERTIFIED_CONDITION,
        False,
        Reason.ISSUING,
        f"Certificate {name} is not issued: {told}; {advice}",
    )


def ready_since(made: Document | None) -> str | None:
    """Return when a Certificate was issued as it is now, as it is written; None: it is not."""
    if made is None:
        return None
    found = _condition(made, "Ready")
    is_current = found.get("observedGeneration") in (None, made["metadata"].get("generation"))
    if found.get("status") != "True" or not is_current:
        return None
    since: str | None = found.get("lastTransitionTime") or None
    return since


def issuer_problem(reference: IssuerReference, found: Document | None) -> tuple[Reason, str] | None:
    """Return what is wrong with an issuer of cert-manager's own kinds; None: nothing.

    Args:
        found: it; None: there is none.
    """
    name = f"{reference.kind} {reference.name}"
    if found is None:
        where = "" if reference.kind == "ClusterIssuer" else " in the Cluster's namespace"
        advice = "create it, or correct spec.tls.issuerRef"
        return Reason.NO_ISSUER, f"there is no {name}{where}: {advice}"
    ready = _condition(found, "Ready")
    if ready.get("status") == "True":
        return None
    told = ready.get("message") or "cert-manager has yet to look at it"
    advice = f"mend it; `kubectl describe {reference.kind.lower()} {reference.name}` says more"
    return Reason.ISSUER_NOT_READY, f"{name} is not ready: {told}; {advice}"


def trusted(
    now_issued: Sequence[bytes], told: Sequence[bytes], *, since: float, now: float, spread: float
) -> tuple[list[bytes], float]:
    """Return the authorities that clients trust, and since when that is so.

    Args:
        now_issued: those of the Secret.
        told: those that clients trust now.
        since: when that was changed last, in seconds since 1970.
        now: likewise.
        spread: in which what has changed reaches all pods.
    """
    if not now_issued:
        return list(told), since
    both = [*now_issued, *(each for each in told if each not in now_issued)]
    if not set(now_issued) <= set(told):
        return both, now
    return (both, since) if now < since + spread else (list(now_issued), since)


def _condition(document: Document, type_: str) -> Document:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_), {})


def _message(document: Document, type_: str) -> str:
    found: str = _condition(document, type_).get("message") or ""
    return found
