"""One broker process, put together: opened, served and closed in the order that safety asks for.

Start: bind the ports, take part in the election of the controller, open a session with whoever it
is, open the log directories (lock, recovery), register, take up the partitions, and only then
answer. Stop: have others take over what this broker leads, finish the calls in flight, stop the
append threads, close every log and leave the clean-shutdown markers, and give the lease back last.

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
from typing import Any, NamedTuple

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from millrace.broker.config import BrokerConfig, ListenerConfig, ReplicaListenerConfig
from millrace.broker.controller import ControllerShell
from millrace.broker.coordination.opening import open_store
from millrace.broker.rpc.cluster import ClusterService
from millrace.broker.rpc.controller import ControllerService
from millrace.broker.rpc.fetch import FetchService, ReplicaService
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.server import make_server
from millrace.broker.runtime.controller_channel import ControllerChannel
from millrace.broker.runtime.descriptors import connections_allowed
from millrace.broker.runtime.housekeeping import Housekeeping
from millrace.broker.runtime.mailbox import Mailbox, Worker
from millrace.broker.runtime.memory import MemoryPool
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.replica_fetcher import ReplicaFetcher
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    Identity,
    LogDirectory,
    read_controller_epoch,
    read_identity,
)
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.broker.storage.sealed_file import DamagedFileError
from millrace.broker.telemetry.logs import configure_logging
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core import settings
from millrace.core.errors import (
    BrokerShuttingDownError,
    InvalidConfigError,
    LogDirFailedError,
    MillraceError,
    NotControllerError,
    StorageError,
)
from millrace.core.ids import NO_BROKER, BrokerEpoch, BrokerId, ControllerEpoch
from millrace.core.metadata.image import MetadataChanges
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import RegisterBroker
from millrace.core.metadata.topic_config import TopicConfig

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may keep the interpreter while another wants it.

The default of 5 ms would be the latency of every hop between the loop and a busy thread.
"""


_UNFENCED_PAUSE_SECONDS = 0.02
"""How often a broker that has registered asks whether it may lead."""


class Address(NamedTuple):
    """Where somebody connects."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Where a broker can be reached once it is ready.

    Attributes:
        address: `host:port` that clients connect to.
        replica_address: `host:port` that the cluster's other brokers connect to.
        metrics_address: `host:port` of the metrics page; empty when there is none.
    """

    cluster_id: str
    broker_id: BrokerId
    address: str
    replica_address: str
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
        self._failure: MillraceError | None = None
        self._life: BrokerLife | None = None
        self.metrics = BrokerMetrics()
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()
        self._directories: list[LogDirectory] = []
        self._controller: ControllerShell | None = None
        self._channel: ControllerChannel | None = None
        self._partitions: Partitions | None = None
        self._fetcher: ReplicaFetcher | None = None
        self._streaming: tuple[ProduceService | FetchService, ...] = ()
        self._replica: ReplicaService | None = None
        self._sessions: ControllerService | None = None
        self._workers: list[Worker] = []
        self._reader: LogReader | None = None
        connections = connections_allowed(
            config.limits.connections_max, config.storage.file_handles_max
        )
        limits = replace(config.limits, connections_max=connections)
        self._server = make_server(limits)
        self._replica_server = make_server(limits)
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
        address = self._bind(self._server, config.listener, "clients", "listener")
        replica_address = self._bind(
            self._replica_server, config.replica_listener, "brokers", "replica_listener"
        )
        metrics_address = self._serve_metrics()
        identities = [_identity_at(files, path) for path in config.log_dirs]
        cluster_id = next((each.cluster_id for each in identities if each), None)
        controller = await self._start_controller(replica_address, cluster_id)
        channel = await self._open_channel(files, controller, cluster_id)
        cluster_id = channel.metadata.cluster.cluster_id
        has_new_directory = await self._open_directories(files, cluster_id)
        await self._keep_controller_epoch(channel.metadata.cluster.controller_epoch)
        broker = await self._register(channel, address, replica_address)
        partitions = await self._take_up_partitions(broker, channel, has_new_directory)
        self._add_services(broker, channel, partitions)
        assert self._reader is not None
        housekeeping = Housekeeping(
            partitions,
            self._reader,
            config.storage,
            self.metrics,
            is_controller=lambda: controller.is_controller,
        )
        self._spawn(housekeeping.run())
        await self._server.start()
        ready = BrokerAddress(
            cluster_id=cluster_id,
            broker_id=broker.broker_id,
            address=str(address),
            replica_address=str(replica_address),
            metrics_address=metrics_address,
        )
        _log.info("broker is ready", extra={"address": ready.address, "cluster_id": cluster_id})
        return ready

    def _bind(
        self,
        server: grpc.aio.Server,
        listener: ListenerConfig | ReplicaListenerConfig,
        who: str,
        name: str,
    ) -> Address:
        """Bind a port before anybody is told of it; return what to tell."""
        address = str(Address(listener.host, listener.port))
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:  # All that gRPC says.
            raise InvalidConfigError(
                f"{who} cannot be served on {address}: another process may use the port. Stop it, "
                f"or set {name}.port to another one, or to 0 for any that is free"
            ) from error
        return Address(
            listener.advertised_host or _advertised(listener.host),
            listener.advertised_port or port,
        )

    async def _start_controller(
        self, replica_address: Address, known_cluster_id: str | None
    ) -> ControllerShell:
        """Take part in the election; this broker's controller is served before it may be one."""
        config = self._config
        assert self._reader is not None
        store = await self._reader.call(open_store, config.coordination)
        controller = self._controller = ControllerShell(
            config.cluster,
            store,
            config.coordination.lease_times,
            name=config.node.name,
            address=str(replica_address),
            known_cluster_id=known_cluster_id,
            on_failure=self._fail,
        )
        sessions = self._sessions = ControllerService(controller=controller, limits=config.limits)
        controller.observer = sessions
        self._replica_server.add_generic_rpc_handlers([sessions.handlers()])
        await self._replica_server.start()
        await controller.start()
        return controller

    async def _open_channel(
        self, files: PosixFileSystem, controller: ControllerShell, cluster_id: str | None
    ) -> ControllerChannel:
        config = self._config
        channel = self._channel = ControllerChannel(
            config.cluster,
            config.limits,
            find_controller=lambda: controller.holder,
            cluster_id=cluster_id,
            controller_epoch=max(_controller_epoch_at(files, path) for path in config.log_dirs),
            keep_controller_epoch=self._keep_controller_epoch,
            on_failure=self._fail,
        )
        self._spawn(channel.run())
        await self._or_stopped(channel.ready())
        return channel

    async def _or_stopped(self, waiting: Coroutine[Any, Any, Any]) -> Any:
        """Wait for something, unless the broker is to stop meanwhile.

        Raises:
            MillraceError: why it stops.
        """
        task = asyncio.create_task(waiting)
        stopped = asyncio.create_task(self.stopped.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._failure or BrokerShuttingDownError("the broker was stopped")
            return task.result()
        finally:
            task.cancel()
            stopped.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    async def _keep_controller_epoch(self, controller_epoch: ControllerEpoch) -> None:
        """Keep it in every log directory that is open; the highest of them counts (P39)."""
        assert self._reader is not None
        for directory in self._directories:
            try:
                await self._reader.call(directory.keep_controller_epoch, controller_epoch)
            except StorageError as error:
                _log.warning("the controller epoch was not kept", extra={"error": error.message})

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
                        damaged_logs_max=storage.damaged_logs_max,
                    ),
                    cluster_id=cluster_id,
                    broker_id=NO_BROKER if found is None else found.broker_id,
                    new_directory_id=secrets.token_hex(16),
                )
            )
            self._directories.append(directory)
            is_new |= found is None
        return is_new

    async def _register(
        self, channel: ControllerChannel, address: Address, replica_address: Address
    ) -> BrokerLife:
        """Begin a life of this broker, and write down who it is."""
        identities = [each.identity for each in self._directories]
        known_ids = [each.broker_id for each in identities if each.broker_id != NO_BROKER]
        registration = RegisterBroker(
            name=self._config.node.name,
            rack=self._config.node.rack,
            host=address.host,
            port=address.port,
            replica_host=replica_address.host,
            replica_port=replica_address.port,
            incarnation_id=secrets.token_hex(16),
            directory_ids=[each.directory_id for each in identities],
            broker_id=known_ids[0] if known_ids else None,
            previous_broker_epoch=self._closed_by(),
        )
        broker: BrokerLife = await self._or_stopped(channel.register(registration))
        self._life = broker
        assert self._reader is not None
        for directory in self._directories:
            await self._reader.call(directory.assign_broker_id, broker.broker_id)
        return broker

    def _closed_by(self) -> BrokerEpoch | None:
        """Return the life that all log directories say was shut down in order (P27)."""
        found = {each.closed_by for each in self._directories}
        return found.pop() if len(found) == 1 else None

    async def _take_up_partitions(
        self, broker: BrokerLife, channel: ControllerChannel, has_new_directory: bool
    ) -> Partitions:
        """Follow the metadata; return once the logs are open, and this broker may lead."""
        config = self._config
        assert self._reader is not None
        partitions = self._partitions = Partitions(
            broker=broker,
            config=config.replication,
            directories=self._directories,
            channel=channel,
            mailbox=self._mailbox,
            log_config=self._log_config,
            inflated_bytes_max=config.limits.batch_inflated_bytes_max,
            on_changes=partial(self._count_changes, broker),
            on_all_failed=self._fail,
            on_failure=self._fail,
            reader=self._reader,
            has_new_directory=has_new_directory,
        )
        fetcher = self._fetcher = ReplicaFetcher(
            broker,
            partitions,
            checker=self._workers[0],
            config=config.replication,
            limits=config.limits,
            on_failure=self._fail,
        )
        replica = ReplicaService(
            partitions=partitions,
            reader=self._reader,
            limits=config.limits,
            metrics=self.metrics,
            is_for_followers=True,
        )
        self._replica = replica
        self._replica_server.add_generic_rpc_handlers([replica.handlers()])
        partitions.on_sessions_concerned = fetcher.on_sessions_concerned
        channel.log_ends = partitions.log_ends
        channel.offline = partitions.replicas.offline
        channel.on_image = partitions.on_image
        partitions.on_image(channel.metadata)
        self._spawn(partitions.tick())
        await self._or_stopped(partitions.settled())
        await self._or_stopped(self._until_unfenced(channel))
        self._spawn(channel.heartbeats())
        await self._or_stopped(partitions.settled())
        return partitions

    def _count_changes(self, broker: BrokerLife, changes: MetadataChanges) -> None:
        for topic in changes.deleted:
            self.metrics.forget_topic(str(topic.name))
        self.metrics.replication.on_changes(changes, broker.broker_id)

    async def _until_unfenced(self, channel: ControllerChannel) -> None:
        while True:
            try:
                if not (await channel.heartbeat()).is_fenced:
                    return
            except NotControllerError:
                pass  # The next one is told.
            await asyncio.sleep(_UNFENCED_PAUSE_SECONDS)

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
                f"the metrics page cannot listen on {Address(metrics.host, metrics.port)}: "
                f"{error.strerror}: set metrics.port to another port, or to -1 for none"
            ) from error
        return str(Address(metrics.host, self._metrics_server.server_port))

    def _add_services(
        self, broker: BrokerLife, channel: ControllerChannel, partitions: Partitions
    ) -> None:
        limits = self._config.limits
        assert self._reader is not None
        memory = MemoryPool(
            limits.request_memory_bytes_max, limits.connection_request_memory_bytes_max
        )
        self.metrics.request_memory_bytes.set_function(lambda: memory.used)
        produce = ProduceService(
            partitions=partitions,
            channel=channel,
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
            broker_id=broker.broker_id, channel=channel, partitions=partitions, limits=limits
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
        if self._channel is not None and self._partitions is not None and not self.exit_code:
            await self._channel.leave()
        # Streams do not end by themselves: without this, every stop would take the whole grace.
        stopping = asyncio.create_task(self._server.stop(self._config.shutdown.grace_ms / 1000))
        for service in self._streaming:
            service.end_streams()
        await stopping  # Until then followers are served: they are what the answers wait for.
        if self._replica is not None:
            self._replica.end_streams()
        if self._fetcher is not None:
            await self._fetcher.stop()
        if self._partitions is not None:
            await self._partitions.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._partitions is not None:
            for opened in self._partitions.directories:
                await asyncio.to_thread(opened.appender.close)
                self._directories.remove(opened.directory)
                try:
                    await asyncio.to_thread(
                        opened.directory.close,
                        clean=opened.failure is None,
                        broker_epoch=None if self._life is None else self._life.broker_epoch,
                    )
                except StorageError as error:  # The others are closed in order all the same.
                    self._fail(error)
        for directory in self._directories:
            directory.close(clean=False)
        if self._sessions is not None:
            self._sessions.end_streams()
        await self._replica_server.stop(None)
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
        if isinstance(error, MillraceError):
            self._failure = self._failure or error
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


def _controller_epoch_at(files: PosixFileSystem, path: str) -> ControllerEpoch:
    try:
        return read_controller_epoch(files, path)
    except (DamagedFileError, OSError) as error:
        raise LogDirFailedError(
            f"{path}: the controller epoch that was kept cannot be read: {error}. Restore it, or "
            "leave the directory out of log_dirs"
        ) from error


def _advertised(host: str) -> str:
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
