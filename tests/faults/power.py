"""Power cuts of one broker, all brokers, or the store: unflushed bytes are lost."""

import sqlite3
import time
from contextlib import closing

from tests.faults.catalogue import NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.machine import Need


def cut_power(nodes: list[Node]) -> None:
    """Kill processes, and lose what they had not flushed."""
    for node in nodes:
        node.kill()
    for node in nodes:
        if not node.volume.cut_power():
            raise NotSeenError(f"the disk of {node.name} lost nothing")


@fault("F04", "power cut of one broker: process and unflushed bytes", Need.VOLUMES)
def cut_one(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    node = scene.leader(key)
    cut_power([node])
    seen = scene.wait_for_new_leader(key, before)
    node.start()
    return f"{seen}; {scene.wait_for_new_life(node, before)} after unflushed bytes were gone"


@fault(
    "F05",
    "pause one, cut the power of the second, pause the third, resume the first",
    Need.VOLUMES,
)
def pause_and_cut(scene: Scene) -> str:
    key = scene.key()
    cut = scene.leader(key)
    paused, third = scene.dice.sample(scene.cluster.others(cut), 2)
    paused.pause()
    seen = scene.wait_until_out_of_sync(key, paused)
    scene.load.wait_for_more()
    before = scene.view
    cut_power([cut])
    third.pause()
    paused.resume()
    cut.start_in_background()
    time.sleep(scene.dice.uniform(1, 3))
    third.resume()
    cut.wait_until_started()
    return f"{seen}; {scene.wait_for_new_leader(key, before)}"


@fault("F06", "power cut of all brokers at once", Need.VOLUMES)
def cut_all(scene: Scene) -> str:
    before = scene.view
    cut_power(scene.cluster.nodes)
    scene.cluster.start(scene.cluster.nodes)
    for node in scene.cluster.nodes:
        scene.wait_for_new_life(node, before)
    return "every broker registered anew after unflushed bytes were gone"


@fault(
    "F07",
    "followers are killed until the leader stands alone; then its power is cut",
    Need.VOLUMES,
)
def cut_the_last(scene: Scene) -> str:
    key = scene.key()
    last = scene.leader(key)
    first, second = scene.dice.sample(scene.cluster.others(last), 2)
    first.kill()
    scene.wait_until_out_of_sync(key, first)
    scene.load.wait_for_more()
    second.kill()
    scene.wait_until_out_of_sync(key, second)
    before = scene.view
    eligible = [life.broker_id for life in before.partition(key).elr]
    cut_power([last])
    scene.cluster.start([first, second])
    seen = scene.wait_for_new_leader(key, before)
    new, in_sync = scene.view.partition(key), scene.view.isr_ids(key)
    is_first = new.leader_epoch == before.partition(key).leader_epoch + 1
    # An eligible one may already have handed over to a replica that is in sync with it: balancing.
    if new.leader not in eligible and (is_first or not set(eligible) & set(in_sync)):
        raise AssertionError(f"{seen}, with ISR {in_sync}, but only {eligible} were eligible")
    return f"eligible were {eligible}; {seen}"


@fault(
    "F46",
    "the metadata's store: locked for long, or its power and all brokers' is cut",
    Need.VOLUMES,
)
def break_the_store(scene: Scene) -> str:
    cluster = scene.cluster
    before = cluster.look()
    if scene.dice.random() < 0.5:
        with closing(sqlite3.connect(cluster.store_file, isolation_level=None)) as store:
            store.execute("BEGIN IMMEDIATE")
            time.sleep(3)
            store.execute("ROLLBACK")
        what = "locked for 3 s"
    else:
        for node in cluster.nodes:
            node.kill()
        with cluster.watcher.reading:
            if not cluster.store_volume.cut_power():
                raise NotSeenError("the store's disk lost nothing")
        cut_power(cluster.nodes)
        cluster.start(cluster.nodes)
        what = "cut off from power"
    seen = cluster.wait_for_new_controller(before)
    view = cluster.view
    for name, topic in before.topics.items():
        if view.topics.get(name) is None or view.topics[name].topic_id != topic.topic_id:
            raise AssertionError(f"the store forgot topic {name}")
    return f"{what}; {seen}"
