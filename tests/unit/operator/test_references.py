"""Resources of a Cluster that are worked on side by side."""

import asyncio
from typing import Any

import pytest

from millrace.operator.kube.api import ApiError
from millrace.operator.reconcile.references import for_each

DOCUMENTS = [{"metadata": {"name": f"t{number}"}} for number in range(20)]


class Work:
    """Work on resources, each of which takes some turns of the event loop.

    Attributes:
        errors: with which work fails, at once, by the name of the resource.
    """

    def __init__(self, errors: dict[str, Exception] | None = None) -> None:
        self.errors = errors or {}
        self.running: set[str] = set()
        self.done: set[str] = set()

    async def __call__(self, document: dict[str, Any]) -> bool:
        name = document["metadata"]["name"]
        if name in self.errors:
            raise self.errors[name]
        self.running.add(name)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            self.done.add(name)
        finally:
            self.running.discard(name)
        return bool(name != "t1")


def refusal(status: int) -> ApiError:
    return ApiError(status, f"status {status}", request="GET /x")


async def test_none_is_worked_on_any_more_when_a_failure_is_told() -> None:
    work = Work({"t0": refusal(500), "t7": refusal(503)})
    with pytest.raises(ApiError, match="status 500"):
        await for_each(DOCUMENTS, work)
    assert not work.running
    assert len(work.done) == 18, "one that fails keeps no other one from its turn"


async def test_one_that_has_changed_meanwhile_is_not_settled() -> None:
    settled = await for_each(DOCUMENTS, Work({"t3": refusal(409)}))
    assert [number for number, is_settled in enumerate(settled) if not is_settled] == [1, 3]


async def test_a_cancelled_look_ends_the_work_on_all() -> None:
    work = Work()
    look = asyncio.create_task(for_each(DOCUMENTS, work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.running
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert not work.running
    assert not work.done
