"""A plugin for somebody else's pytest: each test's end as a line of JSON, as soon as it is known.

It runs in the virtual environment of the suite, so it may use nothing of this checkout.
"""

import json
import os
from pathlib import Path
from typing import Any

_OUT = Path(os.environ["SAID_BY_PYTEST"])


def pytest_runtest_logreport(report: Any) -> None:
    """Write what became of one phase of a test."""
    said = ""
    if report.skipped and isinstance(report.longrepr, tuple):
        said = report.longrepr[2]
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = (
            str(report.longrepr)[-2000:]
            if crash is None
            else f"{crash.message} ({crash.path}:{crash.lineno})"
        )
    line = {
        "test": report.nodeid,
        "phase": report.when,
        "outcome": report.outcome,
        "seconds": report.duration,
        "said": said,
    }
    with _OUT.open("a") as out:
        out.write(json.dumps(line) + "\n")
