"""What the looks at every replica find."""

import asyncio
from types import SimpleNamespace
from typing import Any

from millrace.broker.replica.counts import measure_sizes


def replica(topic: str, size: int, *, tier: str = "", tier_bytes: int = 0) -> Any:
    log = SimpleNamespace(
        log_dir="/ssd",
        size_bytes=size,
        tier=SimpleNamespace(log_dir=tier) if tier else None,
        tier_bytes=tier_bytes,
    )
    return SimpleNamespace(topic=topic, log=log)


def test_bytes_count_where_they_lie() -> None:
    found = asyncio.run(
        measure_sizes(
            [
                replica("clicks", 100, tier="/hdd", tier_bytes=70),
                replica("clicks", 10),
                replica("orders", 5, tier="/hdd", tier_bytes=5),
            ]
        )
    )
    assert found == ({"clicks": 110, "orders": 5}, {"/ssd": 40, "/hdd": 75})
