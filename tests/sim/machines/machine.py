"""A simulated machine, and the broker process that runs on it.

A machine has clocks, a disk and a place in the network, which outlive its processes. Its supervisor
restarts a process that exits by itself, unless the process was told to stop.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, NoReturn

from tests.sim.machines.clocks import MachineClock
from tests.sim.machines.disk import SimulatedDisk
from tests.sim.machines.network import Network
from tests.sim.machines.process import Process
from tests.sim.machines.rules_of_brokers import Login
from tests.sim.machines.threads import never_return
from tests.sim.world import SECOND, Event, World

from millrace.broker.app import Broker, BrokerAddress
from millrace.broker.coordination.store import CoordinationStore
from millrace.broker.replica.partitions import Partitions
from millrace.broker.storage.log import PartitionLog
from millrace.broker.upkeep.duties import Duties
from millrace.core.broker_config import BrokerConfig
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.replica.replication.replicas import Replicas

SUPERVISOR_US: Final = SECOND


class ClientMachine:
    """A client's machine.

    Args:
        transport: the setting of its clients.
        host: its address, if anything listens there.
        kafka: where its clients begin that speak Kafka's protocol; empty: they do not.

    Attributes:
        is_frozen: the process is paused (SIGSTOP); its clock and the network go on.
        transport, kafka: as given.
        login: as whom its clients of Kafka log in; None: they do not.
    """

    is_powered = True
    login: Login | None = None

    def __init__(
        self,
        world: World,
        name: str,
        network: Network,
        transport: str = "auto",
        *,
        host: str = "",
        kafka: str = "",
    ) -> None:
        self.is_frozen = False
        self.transport = transport
        self.kafka = kafka
        self.world = world
        self.name = name
        self.network = network
        self.clock = MachineClock(world, name)
        network.attach(self, host)
        self.process = Process(self, name)

    def freeze(self) -> None:
        """Pause the process (SIGSTOP)."""
        if not self.is_frozen:
            self.is_frozen = True
            self.network.on_frozen(self.name)

    def thaw(self) -> None:
        """Resume the process (SIGCONT)."""
        if self.is_frozen:
            self.is_frozen = False
            self.process.thaw()


class _WatchedDuties(Duties):
    """Reports errors that neither a disk nor another broker can cause."""

    def __init__(self, on_unexpected: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._on_unexpected = on_unexpected

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, MillraceError):
            self._on_unexpected(error)
        super().fail(error)


class BrokerProcess(Process):
    """One life of a broker.

    Attributes:
        broker: the running broker.
        ready: its addresses, once it is ready.
        was_closed: it has stopped cleanly.
    """

    machine: "BrokerMachine"

    def __init__(
        self,
        machine: "BrokerMachine",
        name: str,
        config: BrokerConfig,
        open_store: Callable[[], CoordinationStore],
        on_unexpected: Callable[[BaseException], None],
    ) -> None:
        super().__init__(machine, name)
        self.broker: Broker | None = None
        self.ready: BrokerAddress | None = None
        self.was_closed = False
        self._duties: Duties | None = None
        self._on_unexpected = on_unexpected
        self._wants_end = False
        self._on_exit = machine.on_exit
        self._config = config
        self._disk = machine.disk
        self._open_store = open_store
        self.begin(self._serve)

    # --- What judges look at -----------------------------------------------------------------

    @property
    def is_controller(self) -> bool:
        controller = None if self.broker is None else self.broker.controller
        return controller is not None and controller.is_controller

    @property
    def life(self) -> BrokerLife | None:
        """Its broker id and epoch, once it is registered."""
        return None if self.broker is None else self.broker.life

    @property
    def _partitions(self) -> Partitions | None:
        return None if self.broker is None else self.broker.partitions

    @property
    def metadata(self) -> MetadataImage | None:
        """The metadata that its partitions follow."""
        return None if self._partitions is None else self._partitions.image

    @property
    def replicas(self) -> Replicas | None:
        """The replicas, once this life is registered."""
        return None if self._partitions is None else self._partitions.replicas

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The open logs."""
        opened = [] if self._partitions is None else self._partitions.all()
        return {partition.topic_partition: partition.log for partition in opened}

    def log(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """One open log."""
        found = None if self._partitions is None else self._partitions.find(topic_partition)
        return None if found is None else found.log

    @property
    def failed(self) -> list[TopicPartition]:
        """Partitions whose logs were found damaged, and were not replaced yet."""
        return [] if self.replicas is None else list(self.replicas.unopened.errors)

    # --- How it ends -------------------------------------------------------------------------

    def terminate(self) -> None:
        """Tell it to stop cleanly (SIGTERM)."""
        self._wants_end = True
        if self._duties is not None:
            self.loop.call_soon(self._duties.stop_soon)

    async def _serve(self) -> None:
        reason = ""
        duties = self._duties = _WatchedDuties(self._on_unexpected)
        self.loop.set_exception_handler(lambda _, context: duties.on_unexpected(context))
        if self._wants_end:
            duties.stop_soon()
        try:
            async with AsyncExitStack() as endings:
                self.broker = Broker(
                    self._config, duties, endings, files=self._disk, open_store=self._open_store
                )
                self.ready = await self.broker.start()
                await duties.is_over.wait()
        except MillraceError as error:
            reason = error.message
        except Exception as error:
            self._on_unexpected(error)
            raise
        else:
            self.was_closed = not duties.exit_code
            reason = "" if self.was_closed else "it failed"
        self.world.after(0, f"{self.name} ends", self._on_exit, self, reason)


class BrokerMachine:
    """One machine, and its supervisor.

    Args:
        new_process: creates the process of the next life.

    Attributes:
        node: the process; None while none runs.
        lives: how many processes have run.
        is_frozen: the process is paused (SIGSTOP); clocks and network go on.
        is_terminating: the process was told to stop; then the supervisor does not restart it.
        exits: why processes exited by themselves.
        was_closed: the previous life stopped cleanly, on this disk, with nothing in between.
    """

    def __init__(
        self,
        world: World,
        name: str,
        network: Network,
        host: str,
        new_process: Callable[["BrokerMachine", str], BrokerProcess],
    ) -> None:
        self.world = world
        self.name = name
        self.network = network
        self.host = host
        self.clock = MachineClock(world, name)
        self.disk = SimulatedDisk(world, name)
        self.disk.lose_power = self._lose_power_in_a_call
        self.node: BrokerProcess | None = None
        self.lives = 0
        self.is_powered = True
        self.is_frozen = False
        self.is_terminating = False
        self.exits: list[str] = []
        self._new_process = new_process
        self._restart: Event | None = None
        network.attach(self, host)

    # --- What tests and faults do to it ------------------------------------------------------

    def start(self) -> None:
        """Start a process, unless one runs."""
        self._cancel_restart()
        if self.node is not None:
            return
        self.is_powered = True
        self.is_terminating = False
        self.lives += 1
        self.world.note(f"{self.name} starts, life {self.lives}")
        self.node = self._new_process(self, f"{self.name}.{self.lives}")

    def kill(self, *, is_silent: bool = False) -> None:
        """End the process at once (SIGKILL). Its writes stay in the page cache."""
        self._cancel_restart()
        if self.node is None:
            return
        self.world.note(f"{self.name} dies")
        node, self.node = self.node, None
        self.network.on_process_ended(node, is_silent=is_silent)
        node.bury()
        self.is_frozen = False
        self.clock.forget_timers()
        self.disk.restart()

    def terminate(self) -> None:
        """Tell the process to stop cleanly (SIGTERM)."""
        self.is_terminating = self.node is not None
        if self.node is not None:
            self.node.terminate()

    def cut_power(self) -> None:
        """Cut the power: some unflushed bytes are lost, and peers get no message."""
        self.kill(is_silent=True)
        self.is_powered = False
        self.world.note(f"{self.name} loses power")
        self.disk.cut_power()

    def freeze(self) -> None:
        """Pause the process (SIGSTOP)."""
        if self.node is not None and not self.is_frozen:
            self.is_frozen = True
            self.network.on_frozen(self.name)

    def thaw(self) -> None:
        """Resume the process (SIGCONT)."""
        if self.is_frozen:
            self.is_frozen = False
            if self.node is not None:
                self.node.thaw()

    # --- How processes end -------------------------------------------------------------------

    def on_exit(self, process: BrokerProcess, reason: str) -> None:
        """A process has exited by itself."""
        if process is not self.node:
            return
        self.world.note(f"{self.name} exits: {reason or 'in order'}")
        self.exits.append(reason)
        self.kill()
        if not self.is_terminating:
            self._start_later()

    def _lose_power_in_a_call(self) -> NoReturn:
        self.cut_power()
        self._start_later()
        never_return()

    def _start_later(self) -> None:
        self._cancel_restart()
        self._restart = self.world.after(SUPERVISOR_US, f"{self.name} supervisor", self.start)

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
