"""Every transcript is what the machine says today."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenario.leader_commands import LeaderCommands
from tests.scenario.session_commands import SessionCommands
from tests.scenario.transcript import Command, replayed

_HERE = Path(__file__).parent
_MACHINES: dict[str, Callable[[], Callable[[Command], list[str]]]] = {
    "leader": LeaderCommands,
    "session": SessionCommands,
}


@pytest.mark.parametrize("name", sorted(str(p.relative_to(_HERE)) for p in _HERE.glob("*/*.txt")))
def test_the_transcript_is_what_the_machine_says(name: str, request: pytest.FixtureRequest) -> None:
    path = _HERE / name
    golden = path.read_text()
    now = replayed(golden, _MACHINES[path.parent.name]())
    if request.config.getoption("--rewrite"):
        path.write_text(now)
    else:
        assert now == golden, "read the difference, then run: pytest tests/scenario --rewrite"
