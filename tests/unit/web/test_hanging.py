"""What the page of transactions says to who may not see all of them."""

from types import SimpleNamespace
from typing import Any

from millrace.client import TransactionalIdAuthorizationFailedError
from millrace.web.pages.transactions import _hanging


class NotForAll:
    """An admin that may not see all transactional ids."""

    async def describe_topics(self) -> dict[str, Any]:
        return {}

    async def find_hanging_transactions(self) -> list[Any]:
        raise TransactionalIdAuthorizationFailedError("some are hidden")


async def test_the_page_is_there_for_who_may_not_see_all_transactional_ids() -> None:
    visit: Any = SimpleNamespace(cluster=SimpleNamespace(admin=NotForAll()))
    assert "may see all" in str(await _hanging(visit))
