"""How `make test` spreads the tests over all cores.

Tests of a file of integration tests stay in one process, as they share what the file has started;
those of a folder whose session is dear, too, and Spark's, which take longest, begin first. All
others go wherever there is room.
"""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_FIRST = "tests/integration/spark/"
_FOLDERS = (_FIRST, "tests/integration/kubernetes/")


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """Return what a test belongs to; one process has all of that."""
        path = nodeid.partition("::")[0]
        folder = next((each for each in _FOLDERS if path.startswith(each)), None)
        return folder or (path if path.startswith("tests/integration/") else nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling:
    return _Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # One of several processes.
        items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
