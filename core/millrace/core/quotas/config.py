"""The settings of quotas: how they are enforced."""

from dataclasses import dataclass

from millrace.core.settings import Unit, Visibility, setting


@dataclass(frozen=True, kw_only=True)
class QuotasConfig:
    """How [quotas](quotas.md) are enforced. The quotas themselves are no settings."""

    burst_ms: int = setting(
        200,
        "How much of its limit an idle client saves up: this many milliseconds of it may come at "
        "once.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=60_000,
        visibility=Visibility.TUNING,
    )
    throttle_ms_max: int = setting(
        300_000,
        "Longest delay of a client that exceeds its quota. More is forgiven, so a client exceeds "
        "its quota if its requests are larger than the quota allows in this time.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=3_600_000,
    )
    buckets_max: int = setting(
        10_000,
        "Most clients and topics whose use is counted separately; about 500 bytes each. Beyond it, "
        "further ones of a quota share its limit. Idle ones are forgotten after a minute.",
        minimum=10,
        maximum=1_000_000,
    )
