"""`python -m tests.integration.held_broker`: the `millrace` command, whose transport can hold.

A test writes down at which broker which messages are held: `Holds`. A message that is held stays
where it is, and the rest of the broker goes on. So a test can kill whom it wants at a step of the
protocol, which it has seen to begin. The points, each a pattern of `fnmatch`:

    InitProducerId.asked, .answered    a call of one message: before it is served, and after that
    JoinTransaction.asking.2, .told.2  a call to broker 2, this one too: before it is sent, and
                                       before its answer is heard; `JoinTransaction-of-group` is the
                                       same for positions
    Produce.Produce.answers            what a stream answers; `Replica.Fetch.answers` is what
                                       followers get
"""

import asyncio
import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.replica.peers import Peers
from millrace.broker.rpc.calls import Calls, ServiceMethods, StreamCall, UnaryCall
from millrace.cli.entry import millrace

_FOLDER: Final = "MILLRACE_TEST_HOLDS"
_NAME: Final = "MILLRACE_BROKER__NODE__NAME"
_LOOK_SECONDS: Final = 0.005
_HIT_SECONDS_MAX: Final = 30.0


class Holds:
    """What the brokers of a cluster hold.

    Args:
        cluster: not started yet.
        folder: for what is to be held, and what is.
    """

    def __init__(self, cluster: RunningCluster, folder: Path) -> None:
        self._folder = folder
        for broker in cluster.brokers:
            broker.module = __name__
            broker.wrapper = ["env", f"{_FOLDER}={folder}"]

    def hold(self, broker: RunningBroker, point: str) -> None:
        """Let a broker hold messages at a point, and let go what it held at another one."""
        name = str(broker.settings["node.name"])
        new = self._folder / "new"
        new.write_text(point)
        new.replace(self._folder / name)
        self._hit(broker).unlink(missing_ok=True)  # What is held notes it again.

    def wait_until_held(self, broker: RunningBroker) -> None:
        """Return once a broker holds a message."""
        pattern = (self._folder / str(broker.settings["node.name"])).read_text()

        def is_held() -> bool:
            try:
                pid, point = self._hit(broker).read_text().split()
            except FileNotFoundError:
                return False
            return int(pid) == broker.pid and fnmatch(point, pattern)

        wait_until(is_held, f"{pattern} is held by process {broker.pid}", _HIT_SECONDS_MAX)

    def _hit(self, broker: RunningBroker) -> Path:
        return self._folder / f"hit.{broker.settings['node.name']}"

    def release(self) -> None:
        """Let all brokers go on."""
        for path in sorted(self._folder.iterdir()):
            path.unlink(missing_ok=True)


async def _pass(point: str) -> None:
    """Return once messages may pass a point; files tell no waiter that they are gone."""
    is_held = _is_held(point)
    while is_held:
        await asyncio.sleep(_LOOK_SECONDS)
        is_held = _is_held(point)


def _is_held(point: str) -> bool:
    """Return whether a message is held at a point, and note it."""
    folder, name = Path(os.environ[_FOLDER]), os.environ[_NAME]
    try:
        pattern = (folder / name).read_text()
    except FileNotFoundError:
        return False
    if not fnmatch(point, pattern):
        return False
    hit = folder / f"hit.{name}"
    if not hit.exists():
        new = folder / f"hit.{name}.new"
        new.write_text(f"{os.getpid()} {point}")
        new.replace(hit)
    return True


class _HeldCall:
    """A `ServerCall` whose answers can be held."""

    def __init__(self, call: Any, point: str) -> None:
        self._call = call
        self._point = point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, *parts: Any) -> None:
        await _pass(self._point)
        await self._call.write(*parts)

    def try_write(self, *parts: Any) -> bool:
        return not _is_held(self._point) and self._call.try_write(*parts)


def _hold_unary(name: str, serve: UnaryCall) -> UnaryCall:
    async def held(data: bytes, call: Any) -> bytes:
        await _pass(f"{name}.asked")
        answer = await serve(data, call)
        await _pass(f"{name}.answered")
        return answer

    return held


def _hold_stream(name: str, serve: StreamCall) -> StreamCall:
    async def held(call: Any) -> None:
        await serve(_HeldCall(call, f"{name}.answers"))

    return held


def _hold_messages() -> None:
    """Have all messages of this process pass the points."""
    made, asked = Calls.methods, Peers.ask

    def methods(calls: Calls, service: str, **kinds: Mapping[str, Any]) -> ServiceMethods:
        found = made(calls, service, **kinds)
        short = service.rpartition(".")[2]
        return ServiceMethods(
            found.name,
            {name: _hold_unary(name, serve) for name, serve in found.unary.items()},
            {name: _hold_stream(f"{short}.{name}", call) for name, call in found.streams.items()},
            found.local,
        )

    async def ask(peers: Peers, broker_id: Any, method: Any, request: Any) -> Any:
        name = method.name
        if name == "JoinTransaction" and request.groups:
            name += "-of-group"
        await _pass(f"{name}.asking.{broker_id}")
        answer = await asked(peers, broker_id, method, request)
        await _pass(f"{name}.told.{broker_id}")
        return answer

    Calls.methods = methods  # type: ignore[assignment, method-assign]
    Peers.ask = ask  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    _hold_messages()
    millrace()
