"""An eligible replica must show what it is counted on for, before it leads (P26).

A volume that is restored from a snapshot looks like that of a broker that crashed. So does a log
whose end damage has cut off: the simulator does that.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster, read_all, write_numbers

from millrace.client import PartitionDescription, SyncAdmin
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import SHARD_KEYS
from millrace.core.metadata.objects.encoding import decode_shard
from millrace.core.metadata.objects.stored_object import StoredObject

TOPIC = "fs"
COUNT = 300


class Loss:
    """Three brokers, of which one died, then another, which is eligible; then their leader.

    Attributes:
        first: led last; it has everything.
        eligible: is counted on for all that was acknowledged.
        third: died before more was acknowledged.

    Args:
        puts_back: whether the eligible one gets an earlier snapshot of its volume.
    """

    def __init__(self, cluster: RunningCluster, folder: Path, *, puts_back: bool = True) -> None:
        self.cluster = cluster
        self._store = folder / "coordination.sqlite"
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=1, replication_factor=3)
            before = self.state(admin)
            self.first, self.eligible, self.third = (
                cluster[replica] for replica in before.replicas
            )
            assert before.leader == before.replicas[0]
            write_numbers(cluster.bootstrap, TOPIC, range(COUNT))
            (log,) = self.eligible.log_dirs
            with self.eligible.paused():  # A snapshot has one moment's files.
                shutil.copytree(log, folder / "snapshot")
            write_numbers(cluster.bootstrap, TOPIC, range(COUNT, 2 * COUNT))
            self.third.kill()
            write_numbers(cluster.bootstrap, TOPIC, range(2 * COUNT, 3 * COUNT))
            self.eligible.kill()
            wait_until(lambda: self.state(admin).elr == before.replicas[1:2], "it is eligible")
        wait_until(lambda: self.committed() == 3 * COUNT, "its leader has said what is committed")
        self.first.kill()
        if puts_back:
            shutil.rmtree(log)
            shutil.copytree(folder / "snapshot", log)

    def state(self, admin: SyncAdmin) -> PartitionDescription:
        return admin.describe_topic(TOPIC).partitions[0]

    def committed(self) -> int:
        """What eligible replicas are counted on for, as stored."""
        with closing(sqlite3.connect(self._store)) as store:
            rows = store.execute(
                "SELECT key, value, version, controller_epoch FROM objects"
            ).fetchall()
        return max(
            topic.partitions[0].committed_end.end_offset
            for key, value, version, epoch in rows
            if key in SHARD_KEYS
            for topic in decode_shard(
                SHARD_KEYS.index(key), StoredObject(value, version, ControllerEpoch(epoch))
            ).topics.values()
        )

    def start_without_the_first(self) -> None:
        """Start the others; return once it is known that none of them can lead."""
        self.eligible.start()
        self.third.start()
        bootstrap = f"{self.eligible.address},{self.third.address}"
        millrace = CommandLine(bootstrap)
        number = self.cluster.brokers.index(self.eligible)

        def is_told() -> bool:
            said = millrace.run("cluster", "health").output
            return f"offline: {TOPIC}-0 on broker {number}: {TOPIC}-0: records were" in said

        wait_until(is_told, "cluster health says what it lacks", 60)
        said = millrace.run("topic", "describe", TOPIC).output
        assert f"up to offset {3 * COUNT}" in said
        assert "an older copy of the disk was put back" in said
        with SyncAdmin(bootstrap) as admin:
            assert self.state(admin).leader == -1


def test_one_that_lacks_records_does_not_lead_and_with_the_one_that_has_them_all_is_there(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    loss = Loss(cluster, tmp_path)
    loss.start_without_the_first()
    wait_until(
        lambda: any(
            broker.log_has("eligible replicas lack acknowledged records")
            for broker in cluster.brokers
        ),
        "the controller says so",
    )
    loss.first.start()
    values = read_all(cluster.bootstrap, TOPIC, 3 * COUNT)
    assert values == [b"%d" % number for number in range(3 * COUNT)]
    with SyncAdmin(cluster.bootstrap) as admin:
        wait_until(lambda: len(loss.state(admin).isr) == 3, "all are in sync again", 60)
    write_numbers(cluster.bootstrap, TOPIC, range(3 * COUNT, 4 * COUNT))


def test_a_person_may_go_on_without_what_it_lacks(cluster: RunningCluster, tmp_path: Path) -> None:
    loss = Loss(cluster, tmp_path)
    loss.start_without_the_first()
    millrace = CommandLine(f"{loss.eligible.address},{loss.third.address}")
    elected = millrace.run("elect-leaders", "--unclean", "--yes", f"{TOPIC}:0")
    assert elected.exit_code == 0, elected.output
    assert read_all(loss.eligible.address, TOPIC, COUNT) == [b"%d" % at for at in range(COUNT)]


def test_one_that_has_everything_leads(cluster: RunningCluster, tmp_path: Path) -> None:
    loss = Loss(cluster, tmp_path, puts_back=False)
    loss.eligible.start()
    loss.third.start()
    values = read_all(loss.eligible.address, TOPIC, 3 * COUNT)
    assert values == [b"%d" % number for number in range(3 * COUNT)]
