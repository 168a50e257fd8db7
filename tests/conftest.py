"""What holds for every layer of tests."""

import asyncio
import inspect
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.changes import ByChanges

import millrace.client  # noqa: F401  # Before gRPC, whose handlers of forks it switches off.


def pytest_configure(config: pytest.Config) -> None:
    """Let no example fail for its time; let SIGINT and SIGHUP end programs that a test starts.
    Leave for the night what `tests/changes.py` says.

    Several tests run at once, on machines that others use. And a shell's background job ignores
    SIGINT, and `nohup` SIGHUP, and so would all their children; a handler of Python's is set back
    to the default where a child begins.
    """
    config.pluginmanager.register(ByChanges(config, Path(__file__).parents[1]))
    settings.register_profile("busy machine", deadline=None)
    settings.load_profile("busy machine")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)  # Pytest itself only says that it cannot.
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test to its end: with the fixture `runner` where its folder has one."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given: dict[str, Any] = pyfuncitem.funcargs
    run = given["runner"].run if "runner" in given else asyncio.run
    run(test(**{name: given[name] for name in inspect.signature(test).parameters}))
    return True
