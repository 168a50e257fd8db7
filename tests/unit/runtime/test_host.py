"""The machine that a process runs on."""

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from typing import Any

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


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_loop_on_a_thread_goes_on_after_what_ends_loops(
    monkeypatch: pytest.MonkeyPatch, new_loop: Any, ending: type[BaseException]
) -> None:
    monkeypatch.setattr(host, "_new_loop", new_loop)
    loop = host.RealHost().start_loop("goes on")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "goes on"]
    ran = host.RealHost().new_queue()

    def leave() -> None:
        raise ending

    def begin() -> None:
        loop.set_exception_handler(lambda _, context: ran.put(type(context["exception"])))
        loop.call_soon(leave)
        loop.call_soon(ran.put, "in the same turn")

    loop.call_soon_threadsafe(begin)
    assert {ran.get(timeout=60), ran.get(timeout=60)} == {"in the same turn", ending}
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


UNKNOWN = "no name"
"""The look-up fails without a question to the network."""


async def _connect_and_give_up(seen: list[dict[str, Any]]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    connecting = asyncio.create_task(
        host.RealHost().connect(f"{UNKNOWN}:1", asyncio.BufferedProtocol)
    )
    await asyncio.sleep(0)  # It has begun to look the name up.
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    del connecting
    with pytest.raises(socket.gaierror):  # By now the first look-up has failed, too.
        await loop.getaddrinfo(UNKNOWN, 1)
    gc.collect()


def test_a_name_that_is_not_found_after_its_connection_was_given_up_is_no_unexpected_error() -> (
    None
):
    """Such an error ends a broker: connections are given up while the DNS is away."""
    seen: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_connect_and_give_up(seen))
    assert seen == []


async def test_all_addresses_of_a_name_are_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"localhost:{listening.getsockname()[1]}"  # Often [::1] comes first.
        protocol = await host.RealHost().connect(address, asyncio.BufferedProtocol)
        assert isinstance(protocol, asyncio.BufferedProtocol)


async def test_where_nobody_listens_no_connection_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"localhost:{listening.getsockname()[1]}"
    with pytest.raises(ConnectionRefusedError):
        await host.RealHost().connect(address, asyncio.BufferedProtocol)


@pytest.mark.parametrize(
    "address",
    ["", "h", "h:", "h:1/x", "h:99999", "h:\N{SUPERSCRIPT TWO}", "a..b:1", "x" * 500 + ":1"],
)
async def test_what_is_no_address_cannot_be_reached(address: str) -> None:
    """Others name addresses: a wrong one must be no error that nobody expects."""
    with pytest.raises(OSError, match="is no address"):
        await host.RealHost().connect(address, asyncio.BufferedProtocol)
