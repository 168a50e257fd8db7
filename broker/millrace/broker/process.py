"""The process of a broker: its settings, its signals, its event loop, and its exit code."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import uvloop

from millrace.broker import events
from millrace.broker.app import Broker, BrokerAddress
from millrace.broker.coordination.opening import open_store
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.broker.telemetry.logs import configure_logging
from millrace.broker.upkeep.duties import Duties
from millrace.core import settings
from millrace.core.broker_config import BrokerConfig
from millrace.runtime.garbage import Garbage

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may keep the interpreter while another wants it.

The default of 5 ms would be the latency of every hop between the loop and a busy thread.
"""


def run(
    config: BrokerConfig,
    on_ready: Callable[[BrokerAddress], None],
    stop_signals: Sequence[signal.Signals],
) -> int:
    """Run a broker until a signal; return the process's exit code.

    Args:
        config: of this process.
        on_ready: called once clients can connect.
        stop_signals: each stops the broker gracefully.

    Raises:
        MillraceError: the broker could not start; says why and what to do.
    """
    if not __debug__:
        raise SystemExit("a broker must not run with python -O: its assertions guard the data")
    settings.check(config)
    configure_logging(config.logging)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, on_ready, stop_signals))


async def _serve(
    config: BrokerConfig,
    on_ready: Callable[[BrokerAddress], None],
    stop_signals: Sequence[signal.Signals],
) -> int:
    duties = Duties()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: duties.on_unexpected(context))
    for number in stop_signals:
        loop.add_signal_handler(number, duties.stop_soon)
    garbage = Garbage()
    async with AsyncExitStack() as endings:
        garbage.begin()
        endings.callback(garbage.end)
        broker = Broker(
            config,
            duties,
            endings,
            files=PosixFileSystem(config.storage.file_handles_max),
            open_store=partial(open_store, config.coordination),
        )
        ready = await broker.start()
        garbage.keep_all()
        duties.begin(garbage.run())
        events.BROKER_READY.log(_log, address=ready.address, cluster_id=ready.cluster_id)
        on_ready(ready)
        await duties.is_over.wait()
    return duties.exit_code
