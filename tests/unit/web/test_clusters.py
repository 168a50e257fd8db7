"""The clusters that were known stay known while their list cannot be had."""

import asyncio
from collections.abc import Mapping

import pytest

from millrace.core.errors import ConnectionFailedError
from millrace.web.clusters import Clusters, Place


def places(**found: str) -> Mapping[str, Place]:
    return {name: Place(bootstrap) for name, bootstrap in found.items()}


class Listed:
    """A list of clusters that may fail, or hang."""

    def __init__(self, **found: str) -> None:
        self.found = places(**found)
        self.fails = self.hangs = False
        self.asked = 0

    async def find(self) -> Mapping[str, Place]:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.fails:
            raise ConnectionFailedError("the Clusters cannot be listed: no API server")
        return self.found


def clusters_of(listed: Listed, fresh_s: float) -> Clusters:
    return Clusters(listed.find, fresh_s, find_s_max=0.05)


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_clusters_stay_while_they_cannot_be_listed(trouble: str) -> None:
    listed = Listed(a="h:1")
    clusters = clusters_of(listed, fresh_s=-1)
    before = await clusters.all()
    assert set(before) == {"a"}
    setattr(listed, trouble, True)
    assert await clusters.all() == before
    setattr(listed, trouble, False)
    listed.found = places(b="h:2")
    assert set(await clusters.all()) == {"b"}
    assert listed.asked == 3


@pytest.mark.parametrize(
    ("trouble", "why"), [("fails", "no API server"), ("hangs", r"within 0\.05 s")]
)
async def test_all_who_wait_for_a_list_that_is_not_had_are_told_at_once(
    trouble: str, why: str
) -> None:
    listed = Listed()
    setattr(listed, trouble, True)
    clusters = clusters_of(listed, fresh_s=3600)
    told = await asyncio.gather(*(clusters.all() for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in told} == {ConnectionFailedError}
    with pytest.raises(ConnectionFailedError, match=why):
        await clusters.all()
    assert listed.asked == 1
