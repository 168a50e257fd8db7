"""The quotas, and what is used of them."""

from typing import Final

from millrace.client import QuotaDescription, QuotaUse
from millrace.web.markup import Child, element, joined
from millrace.web.pages.layout import Page, Visit, age_of, bytes_of, number, table

USES_MAX: Final = 500
"""Uses on the page, those that are delayed most first."""


async def page(visit: Visit) -> Page:
    """Return the page."""
    quotas = sorted(
        (await visit.cluster.admin.describe_quotas()).values(), key=lambda quota: quota.name
    )
    uses = [(quota, use) for quota in quotas for use in quota.uses]
    uses.sort(key=lambda pair: (-pair[1].delay_ms, pair[0].name, pair[1].broker_id))
    return Page(
        "Quotas",
        [
            table(
                "Quotas",
                [
                    *("Quota", "For"),
                    *map(number, ("Produce in 1 s", "Fetch in 1 s", "Request time")),
                    "Counts for",
                ],
                [_quota(quota) for quota in quotas],
                "There is no quota: clients may use all there is.",
                is_titled=False,
            ),
            joined(
                table(
                    "Use",
                    [
                        *("Quota", "Limit", "Who", number("Broker")),
                        *map(number, ("Used in 1 s", "Limit in 1 s", "Delay")),
                    ],
                    [_use(quota, use) for quota, use in uses[:USES_MAX]],
                    "No client uses one at present.",
                ),
                element("p", f"{len(uses) - USES_MAX:,} more are left out.")
                if len(uses) > USES_MAX
                else None,
            )
            if quotas
            else None,
        ],
    )


def _quota(quota: QuotaDescription) -> list[Child]:
    percent = quota.request_percent
    return [
        quota.name,
        quota.subject,
        bytes_of(quota.produce_bytes_per_second),
        bytes_of(quota.fetch_bytes_per_second),
        None if percent is None else f"{percent} %",
        "each broker" if quota.per_broker else "the cluster",
    ]


def _use(quota: QuotaDescription, use: QuotaUse) -> list[Child]:
    who = [use.principal, use.client_id, use.topic, use.namespace]
    is_time = use.kind == "request"
    return [
        quota.name,
        use.kind,
        ", ".join(filter(None, who)) or None,
        use.broker_id,
        _amount(use.used_per_second, is_time=is_time),
        _amount(use.limit_per_second, is_time=is_time),
        element("span", age_of(use.delay_ms), class_="state odd") if use.delay_ms else "",
    ]


def _amount(amount: int, *, is_time: bool) -> str | None:
    return f"{amount / 1000:,.1f} ms" if is_time else bytes_of(amount)
