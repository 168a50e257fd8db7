"""Changes of quotas: what may be set, and what is there.

All quotas are in the object of the cluster, which the coordination store must take beside the
brokers: so their number and their bytes are bounded.
"""

import json
from collections.abc import Mapping
from typing import Final

from millrace.core.errors import InvalidQuotaError, QuotaNotFoundError, QuotasFullError
from millrace.core.metadata.objects.encoding import quota_state
from millrace.core.quotas.quota import Quota, checked
from millrace.core.words import count

QUOTAS_BYTES_MAX: Final = 500_000
"""Bytes of all quotas in the object; the object may have a third of a shard's bytes for them."""


def checked_new(quotas: Mapping[str, Quota], asked: Quota, quotas_max: int) -> Quota:
    """Return a quota as it may be set beside the others.

    Raises:
        InvalidQuotaError: it breaks a rule, or another one is for the same.
        QuotasFullError: there is no room for it.
    """
    quota = checked(asked)
    others = [other for other in quotas.values() if other.name != quota.name]
    for other in others:
        if other.entity == quota.entity:
            raise InvalidQuotaError(
                f"quota {other.name!r} is for {other.entity} already: change that one, or delete it"
            )
    if quota.name not in quotas and len(quotas) >= quotas_max:
        raise QuotasFullError(
            f"the cluster has {count(len(quotas), 'quota')}, and the setting cluster.quotas_max "
            f"allows {quotas_max}: delete some, or raise it"
        )
    if sum(map(_bytes_of, [quota, *others])) > QUOTAS_BYTES_MAX:
        raise QuotasFullError(
            f"all quotas together may have {QUOTAS_BYTES_MAX} bytes, and would have more with "
            f"{quota.name!r}: delete some, or give shorter names"
        )
    return quota


def found(quotas: Mapping[str, Quota], name: str) -> Quota:
    """Return a quota.

    Raises:
        QuotaNotFoundError: there is none of that name.
    """
    quota = quotas.get(name)
    if quota is None:
        raise QuotaNotFoundError(f"there is no quota {name[:80]!r}")
    return quota


def _bytes_of(quota: Quota) -> int:
    return len(json.dumps(quota_state(quota)))
