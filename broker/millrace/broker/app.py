"""One broker process, put together: opened, served and closed in the order that safety asks for.

Start: open the log directories (lock, recovery), find the metadata, bind the port, register, take
up the partitions, and only then answer. Stop: finish the calls in flight, stop the append threads,
close every log and leave the clean-shutdown markers, and give the lease back last.

Whatever fails that nobody expected ends the process with a non-zero code: a broker that goes on
after a broken assertion is worse than one that is restarted.
"""

import asyncio
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from millrace.broker.config import BrokerConfig
from millrace.broker.controller import ControllerShell
from millrace.broker.coordination.opening import open_store
from millrace.broker.rpc.cluster import ClusterService
from millrace.broker.rpc.fetch import FetchService
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.server import make_server
from millrace.broker.runtime.descriptors import connections_allowed
from millrace.broker.runtime.housekeeping import Housekeeping
from millrace.broker.runtime.mailbox import Mailbox, Worker
from millrace.broker.runtime.memory import MemoryPool
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    Identity,
    LogDirectory,
    read_identity,
)
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.broker.storage.sealed_file import DamagedFileError
from millrace.broker.telemetry.logs import configure_logging
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core import settings
from millrace.core.errors import (
    InvalidConfigError,
    LogDirFailedError,
    MillraceError,
    StorageError,
)
from millrace.core.ids import NO_BROKER, BrokerId
from millrace.core.metadata.requests import RegisterBroker
from millrace.core.metadata.topic_config import TopicConfig

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may keep the interpreter while another wants it.

The default of 5 ms would be the latency of every hop between the loop and a busy thread.
"""


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Where a broker can be reached once it is ready.

    Attributes:
        address: `host:port` that clients connect to.
        metrics_address: `host:port` of the metrics page; empty when there is none.
    """

    cluster_id: str
    broker_id: BrokerId
    address: str
    metrics_address: str


def run(config: BrokerConfig, on_ready: Callable[[BrokerAddress], None]) -> int:
    """Run a broker until SIGTERM or SIGINT; return the process's exit code.

    Args:
        config: of this process.
        on_ready: called once clients can connect.

    Raises:
        MillraceError: the broker could not start; says why and what to do.
    """
    if not __debug__:
        raise SystemExit("a broker must not run with python -O: its assertions guard the data")
    settings.check(config)
    configure_logging(config.logging)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, on_ready))


async def _serve(config: BrokerConfig, on_ready: Callable[[BrokerAddress], None]) -> int:
    broker = Broker(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: broker.on_unexpected(context))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.stop_soon)
    try:
        on_ready(await broker.start())
        await broker.stopped.wait()
    finally:
        await broker.stop()
    return broker.exit_code


class Broker:
    """See the module. `start` once, `stop` once.

    Attributes:
        stopped: set when the broker should stop, or must.
        exit_code: of the process.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self.metrics = BrokerMetrics()
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()
        self._directories: list[LogDirectory] = []
        self._controller: ControllerShell | None = None
        self._partitions: Partitions | None = None
        self._streaming: tuple[ProduceService | FetchService, ...] = ()
        self._workers: list[Worker] = []
        self._reader: LogReader | None = None
        connections = connections_allowed(
            config.limits.connections_max, config.storage.file_handles_max
        )
        self._server = make_server(replace(config.limits, connections_max=connections))
        self._health = health.aio.HealthServicer()
        self._metrics_server: Any = None

    async def start(self) -> BrokerAddress:
        """Start everything; return once clients can connect."""
        config = self._config
        files = PosixFileSystem(config.storage.file_handles_max)
        self._workers = [
            Worker(f"check-{number}", self._mailbox) for number in range(config.threads.check)
        ]
        self._reader = LogReader(
            self._mailbox,
            threads=config.threads.read,
            buffer_bytes=config.limits.fetch_response_bytes_max,
        )
        controller = self._controller = await self._start_controller(files)
        cluster_id = controller.metadata.cluster.cluster_id
        has_new_directory = await self._open_directories(files, cluster_id)
        address = await self._bind_and_register(controller, cluster_id)
        partitions = self._partitions = Partitions(
            broker_id=address.broker_id,
            directories=self._directories,
            controller=controller,
            mailbox=self._mailbox,
            log_config=self._log_config,
            inflated_bytes_max=config.limits.batch_inflated_bytes_max,
            on_deleted_topic=self.metrics.forget_topic,
            on_all_failed=self._fail,
            reader=self._reader,
            has_new_directory=has_new_directory,
        )
        self._spawn(partitions.follow_metadata())
        await partitions.settled()
        self._add_services(address.broker_id, controller, partitions)
        housekeeping = Housekeeping(partitions, self._reader, config.storage, self.metrics)
        self._spawn(housekeeping.run())
        await self._server.start()
        _log.info("broker is ready", extra={"address": address.address, "cluster_id": cluster_id})
        return address

    async def _start_controller(self, files: PosixFileSystem) -> ControllerShell:
        config = self._config
        assert self._reader is not None
        identities = [_identity_at(files, path) for path in config.log_dirs]
        controller = self._controller = ControllerShell(
            config.cluster,
            await self._reader.call(open_store, config.coordination),
            config.coordination.lease_times,
            name=config.node.name,
            known_cluster_id=next((each.cluster_id for each in identities if each), None),
            on_failure=self._fail,
        )
        await controller.start()
        return controller

    async def _open_directories(self, files: PosixFileSystem, cluster_id: str) -> bool:
        """Open the log directories; return whether one of them is new.

        One that cannot be opened keeps the broker from starting: which partitions it holds is not
        known, and a partition that were begun anew elsewhere would hide the loss.
        """
        assert self._reader is not None
        storage = self._config.storage
        is_new = False
        for path in self._config.log_dirs:
            found = _identity_at(files, path)
            directory = await self._reader.call(
                partial(
                    LogDirectory.open,
                    files,
                    path,
                    DirectoryConfig(
                        ballast_bytes=storage.ballast_bytes,
                        index_cache_bytes=storage.index_cache_bytes,
                        file_delete_delay_ms=storage.trash_delay_ms,
                    ),
                    cluster_id=cluster_id,
                    broker_id=NO_BROKER if found is None else found.broker_id,
                    new_directory_id=secrets.token_hex(16),
                )
            )
            self._directories.append(directory)
            is_new |= found is None
        return is_new

    async def _bind_and_register(
        self, controller: ControllerShell, cluster_id: str
    ) -> BrokerAddress:
        """Bind the port before anybody is told of it, and write down who this broker is."""
        listener = self._config.listener
        address = _host_port(listener.host, listener.port)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:  # All that gRPC says.
            raise InvalidConfigError(
                f"clients cannot be served on {address}: another process may use the port. Stop "
                "it, or set listener.port to another one, or to 0 for any that is free"
            ) from error
        host = listener.advertised_host or _advertised(listener.host)
        identities = [each.identity for each in self._directories]
        known_ids = [each.broker_id for each in identities if each.broker_id != NO_BROKER]
        registration = await controller.register_broker(
            RegisterBroker(
                name=self._config.node.name,
                rack=self._config.node.rack,
                host=host,
                port=listener.advertised_port or port,
                incarnation_id=secrets.token_hex(16),
                directory_ids=[each.directory_id for each in identities],
                broker_id=known_ids[0] if known_ids else None,
            )
        )
        assert self._reader is not None
        for directory in self._directories:
            await self._reader.call(directory.assign_broker_id, registration.broker_id)
        return BrokerAddress(
            cluster_id=cluster_id,
            broker_id=registration.broker_id,
            address=registration.address,
            metrics_address=self._serve_metrics(),
        )

    def _serve_metrics(self) -> str:
        metrics = self._config.metrics
        if metrics.port < 0:
            return ""
        try:
            self._metrics_server, _ = start_http_server(
                metrics.port, metrics.host, self.metrics.registry
            )
        except OSError as error:
            raise InvalidConfigError(
                f"the metrics page cannot listen on {_host_port(metrics.host, metrics.port)}: "
                f"{error.strerror}: set metrics.port to another port, or to -1 for none"
            ) from error
        return _host_port(metrics.host, self._metrics_server.server_port)

    def _add_services(
        self, broker_id: BrokerId, controller: ControllerShell, partitions: Partitions
    ) -> None:
        limits = self._config.limits
        assert self._reader is not None
        memory = MemoryPool(
            limits.request_memory_bytes_max, limits.connection_request_memory_bytes_max
        )
        self.metrics.request_memory_bytes.set_function(lambda: memory.used)
        produce = ProduceService(
            partitions=partitions,
            controller=controller,
            checkers=self._workers,
            memory=memory,
            limits=limits,
            metrics=self.metrics,
        )
        self._spawn(produce.sweep())
        fetch = FetchService(
            partitions=partitions, reader=self._reader, limits=limits, metrics=self.metrics
        )
        cluster = ClusterService(
            broker_id=broker_id, controller=controller, partitions=partitions, limits=limits
        )
        self._streaming = (produce, fetch)
        services = (produce, fetch, cluster)
        self._server.add_generic_rpc_handlers([service.handlers() for service in services])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.NAME for service in services]
        self._spawn(self._report_healthy(["", *names]))
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    async def _report_healthy(self, names: list[str]) -> None:
        for name in names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _log_config(self, topic: TopicConfig) -> LogConfig:
        storage = self._config.storage
        return LogConfig(
            segment_bytes=topic.segment_bytes,
            segment_ms=topic.segment_ms,
            index_interval_bytes=topic.index_interval_bytes,
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            checkpoint_bytes=storage.recovery_point_bytes,
            checkpoint_ms=storage.recovery_point_interval_ms,
        )

    async def stop(self) -> None:
        """Finish what is in flight, close everything cleanly, and leave."""
        await self._health.enter_graceful_shutdown()
        # Streams do not end by themselves: without this, every stop would take the whole grace.
        stopping = asyncio.create_task(self._server.stop(self._config.shutdown.grace_ms / 1000))
        for service in self._streaming:
            service.end_streams()
        await stopping
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._partitions is not None:
            for opened in self._partitions.directories:
                await asyncio.to_thread(opened.appender.close)
                self._directories.remove(opened.directory)
                try:
                    await asyncio.to_thread(opened.directory.close, clean=opened.failure is None)
                except StorageError as error:  # The others are closed in order all the same.
                    self._fail(error)
        for directory in self._directories:
            directory.close(clean=False)
        if self._controller is not None:
            await self._controller.stop()
        for worker in self._workers:
            worker.close()
        if self._reader is not None:
            self._reader.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.shutdown)
            self._metrics_server.server_close()

    def stop_soon(self) -> None:
        """Have the broker stop gracefully."""
        self.stopped.set()

    def on_unexpected(self, context: dict[str, Any]) -> None:
        """End the process because of something that nobody expected."""
        error = context.get("exception")
        _log.critical(context["message"], exc_info=error)
        self._fail(error or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, MillraceError):
            _log.critical("the broker stops", exc_info=error)
        else:
            _log.critical("the broker stops", extra={"error": error.message})
        self.exit_code = 1
        self.stopped.set()

    def _spawn(self, duty: Coroutine[Any, Any, None]) -> None:
        """Run a duty until the broker stops; if it fails, the broker does."""
        task = asyncio.get_running_loop().create_task(duty)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error)

        task.add_done_callback(done)


def _identity_at(files: PosixFileSystem, path: str) -> Identity | None:
    try:
        return read_identity(files, path)
    except FileNotFoundError:
        return None
    except (DamagedFileError, OSError) as error:
        raise LogDirFailedError(
            f"{path}: it cannot be told whose log directory this is: {error}. Restore its identity "
            "file, or leave it out of log_dirs"
        ) from error


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advertised(host: str) -> str:
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
