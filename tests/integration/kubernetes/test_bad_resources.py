"""Resources that are wrong or hostile, against a real API server and the operator's process."""

from collections.abc import Iterator

import pytest
from tests.api_server import binaries
from tests.bad_resources.cases import CASES
from tests.bad_resources.world import World


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An operator with a Cluster, a Topic and a Quota that are good."""
    if not binaries.PROGRAMS.are_built():
        pytest.skip("kube-apiserver and etcd are not built yet: make api-server")
    world = World(tmp_path_factory.mktemp("bad-resources"))
    try:
        yield world.start()
    finally:
        world.stop()


@pytest.mark.timeout(300)
def test_each_is_refused_or_explained_and_troubles_nobody_else(world: World) -> None:
    """One test for the table: all that is accepted stays, as it would beside what others run."""
    wrong = {}
    for case in CASES:
        outcome = world.outcome(case)
        if outcome.missing:
            wrong[case.name] = outcome
    assert wrong == {}
    assert world.problems() == []
