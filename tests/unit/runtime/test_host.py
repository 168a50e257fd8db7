"""The machine that a process runs on."""

import subprocess
import sys

import pytest
import uvloop

from millrace.runtime import host

_LOOP_OF_A_PROCESS = """
import sys
if {lacks_uvloop}:
    sys.modules["uvloop"] = None  # As where it is not installed: its import fails.
from millrace.runtime.host import current
loop = current.start_loop("clients")
print(type(loop).__module__.partition(".")[0])
"""


def _package_of_a_loop(*, lacks_uvloop: bool) -> str:
    code = _LOOP_OF_A_PROCESS.format(lacks_uvloop=lacks_uvloop)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("lacks_uvloop", "package"), [(False, "uvloop"), (True, "asyncio")])
def test_a_loop_on_a_thread_is_uvloops_where_that_is_installed(
    lacks_uvloop: bool, package: str
) -> None:
    assert _package_of_a_loop(lacks_uvloop=lacks_uvloop) == package


def test_a_loop_on_a_thread_runs_what_other_threads_give_it() -> None:
    loop = host.RealHost().start_loop("test")
    assert isinstance(loop, uvloop.Loop)
    ran = host.RealHost().new_queue()
    loop.call_soon_threadsafe(ran.put, "ran")
    assert ran.get(timeout=60) == "ran"
