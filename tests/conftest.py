"""Which tests stay in one process when `make test` spreads them over all cores.

Those of a file of integration tests, as they share what the file has started; and those of a folder
whose session is dear. All others go wherever there is room.
"""

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_FOLDERS = {
    _TESTS / "integration" / "spark": "Spark starts once",
    _TESTS / "integration" / "kubernetes": "the API server starts once",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = _FOLDERS.get(item.path.parent)
        if group is None and _TESTS / "integration" in item.path.parents:
            group = str(item.path.relative_to(_TESTS))
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
