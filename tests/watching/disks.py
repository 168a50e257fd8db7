"""Three brokers with two disks each, an SSD and an HDD as they say, that fail, fill and are slow.

A disk is an ext4 of its own, which takes root; slow disks and event loops take the preloaded
library, which takes a C compiler. What is missing has its reason in `missing`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.machine import Need, missing
from tests.faults.preload import Control, compile_library
from tests.faults.volume import Folder, Volume
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import BROKERS, RunningCluster
from tests.watching.cluster import MEDIA, SETTINGS

_MEBIBYTES: Final = 512
_SETTINGS: Final[dict[str, object]] = {
    **SETTINGS,
    "storage.slow_flush_ms": 500,
    "storage.damaged_logs_max": 1,
    # Logs are compacted all the time, and slowly enough to be met by a fault.
    "storage.cleaner_io_max_bytes_per_second": 256 << 10,
}


@dataclass(frozen=True, kw_only=True)
class FaultyBrokers:
    """The brokers, and the disks that a test breaks.

    Attributes:
        cluster: not started yet.
        disks: of each broker, for the SSD and the HDD.
        controls: of each broker's preloaded library.
        missing: why the machine cannot do what it cannot do.
    """

    cluster: RunningCluster
    disks: list[list[Folder]]
    controls: list[Control]
    missing: dict[Need, str]

    def disks_of(self, broker: RunningBroker) -> list[Folder]:
        """Return the disks of a broker."""
        return self.disks[self.cluster.brokers.index(broker)]

    def control_of(self, broker: RunningBroker) -> Control:
        """Return what controls a broker's library."""
        return self.controls[self.cluster.brokers.index(broker)]


@contextmanager
def faulty_brokers(folder: Path) -> Iterator[FaultyBrokers]:
    """Make the disks, and the brokers, which are to be started; remove the disks at the end."""
    lacks = missing((Need.VOLUMES, Need.PRELOAD))
    library = None if Need.PRELOAD in lacks else compile_library(folder)
    cluster = RunningCluster(folder / "brokers", _SETTINGS, media=[MEDIA] * BROKERS)
    disks: list[list[Folder]] = []
    controls: list[Control] = []
    with ExitStack() as endings:
        for number, broker in enumerate(cluster.brokers):
            disks.append([])
            for index in range(len(MEDIA)):
                path = folder / f"disk-{number}-{index}"
                disk = Folder(path) if Need.VOLUMES in lacks else Volume(path, _MEBIBYTES)
                endings.callback(disk.close)
                disks[-1].append(disk)
            broker.log_dirs = [disk.path / "log" for disk in disks[-1]]
            controls.append(Control(folder / f"control-{number}", library))
            broker.wrapper = ["env", *controls[-1].environment]
        endings.callback(cluster.abandon)
        yield FaultyBrokers(cluster=cluster, disks=disks, controls=controls, missing=lacks)
