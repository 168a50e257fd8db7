"""Which authorities a cluster has, which one signs, and which brokers need another certificate.

Nobody may meet a certificate of an authority that they do not trust yet. So a new authority is only
trusted at first: for `Times.spread`, in which its certificate reaches pods, and people who copy it.
Then it signs, and every broker gets another certificate. Those before it are trusted until they
end. A broker's certificate is renewed when a third of its time is left, or its names change.

What somebody asks for by hand (`Asked`) goes the same way, with less time between its steps: what
they need to reach pods. At the end the older authorities go, as a key may be stolen. It is asked
for by a moment, so that a killed operator finds what is left to do.

A cluster whose authorities have all ended, since no operator ran, gets one that signs at once.

Source: strimzi/proposals#117 (both are trusted during the change).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

AUTHORITIES_MAX: Final = 32
"""Nobody gets another authority by hand while there are so many."""
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long certificates count, in seconds.

    Attributes:
        authority: an authority.
        authority_every: from one authority to the next.
        spread: in which a new authority is trusted only.
        certificate: a broker's certificate.
        certificate_every: from one to the next.
        names_spread: from a new certificate until clients may be told a name that it adds.
        by_hand: `spread`, where somebody has asked for another authority; and from the last
            certificate of those before it until they are not trusted any more.
    """

    authority: float = 365 * _DAY_S
    authority_every: float = 240 * _DAY_S
    spread: float = 60 * _DAY_S
    certificate: float = 30 * _DAY_S
    certificate_every: float = 20 * _DAY_S
    names_spread: float = 180.0
    by_hand: float = 180.0


USUAL: Final = Times()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be renewed by hand: all that was made before a moment, in seconds since 1970.

    Attributes:
        certificates: of the brokers.
        authority: the authority.
    """

    certificates: float = 0.0
    authority: float = 0.0


NOTHING_ASKED: Final = Asked()


@dataclass(frozen=True, slots=True)
class Span:
    """From when and until when a certificate counts, in seconds since 1970."""

    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Held:
    """A certificate that a broker has.

    Attributes:
        span: in which it counts.
        hosts: that it names.
        uri: that it names; empty: none, or several.
        authority: the number of the authority that signed it; None: none of those that there are.
    """

    span: Span
    hosts: frozenset[str]
    uri: str
    authority: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The names that a broker's certificate must have."""

    hosts: frozenset[str]
    uri: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """What to do.

    Attributes:
        new_authority: the number of an authority to make; None: none.
        trusted: the numbers of the authorities that stay, with the new one.
        signing: the number of the one that signs.
        issue: brokers that get another certificate.
    """

    new_authority: int | None
    trusted: tuple[int, ...]
    signing: int
    issue: tuple[str, ...]


def certificates(
    authorities: Mapping[int, Span],
    held: Mapping[str, Held],
    wanted: Mapping[str, Wanted],
    now: float,
    times: Times,
    *,
    asked: Asked = NOTHING_ASKED,
) -> Certificates:
    """Return what to do.

    Args:
        authorities: by their numbers, which grow.
        held: the certificates of brokers that can be read.
        wanted: the names of all brokers.
        now: in seconds since 1970.
        asked: what is to be renewed by hand; what lies ahead waits.
    """
    old_before = asked.authority if asked.authority <= now else 0.0
    alive = sorted(number for number, span in authorities.items() if now < span.ends)
    new = None
    if (
        not alive
        or now >= authorities[alive[-1]].begins + times.authority_every
        or (authorities[alive[-1]].begins < old_before and len(alive) < AUTHORITIES_MAX)
    ):
        new = max(authorities, default=0) + 1
    by_hand = {
        number for before, number in pairwise(alive) if authorities[before].begins < old_before
    }
    spread = [
        number
        for number in alive
        if now - authorities[number].begins
        >= (times.by_hand if number in by_hand else times.spread)
    ]
    used = _used_since(held, wanted, now - times.by_hand)
    kept = [
        number for number in alive if number >= used or authorities[number].begins >= old_before
    ]
    trusted = (*kept, *(() if new is None else (new,)))
    # The first one has nobody before it who could sign.
    signing = spread[-1] if spread else trusted[0]
    renewed_before = asked.certificates if asked.certificates <= now else 0.0
    issue = [
        broker
        for broker, names in wanted.items()
        if (has := held.get(broker)) is None
        or has.authority != signing
        or (has.hosts, has.uri) != (names.hosts, names.uri)
        or has.span.begins < renewed_before
        or now >= min(has.span.begins + times.certificate_every, has.span.ends)
    ]
    return Certificates(new, trusted, signing, tuple(issue))


def _used_since(held: Mapping[str, Held], wanted: Iterable[str], moment: float) -> int:
    """Return the first authority by which certificates were shown since a moment; 0: not known."""
    if not held.keys() >= set(wanted):
        return 0
    signers = [
        has.authority
        for has in held.values()
        if has.authority is not None and has.span.begins <= moment
    ]
    return min(signers, default=0) if len(signers) == len(held) else 0


def known_hosts(
    held: Mapping[str, Held], brokers: Iterable[str], now: float, times: Times
) -> dict[str, frozenset[str]]:
    """Return the names of each broker that clients may be told: its certificate has reached it."""
    return {
        broker: has.hosts
        if (has := held.get(broker)) is not None and now >= has.span.begins + times.names_spread
        else frozenset()
        for broker in brokers
    }
