"""Faults of the API server, which holds brokers' metadata and the controller's lease."""

import json
import time

from e2e.faults.fault import CLUSTER, Scene, fault
from tests.faults.catalogue import NotSeenError

_LEASE = f"lease/{CLUSTER}-controller"
_AWAY_SECONDS = 60.0


@fault("api-server-away", "no node and no pod reaches the API server for 60 s")
def take_the_api_server_away(scene: Scene) -> str:
    before = scene.view
    with scene.kubernetes.api_server_away():
        time.sleep(_AWAY_SECONDS / 4)  # The outage itself: the lease lasts 6 s.
        renewed = _renewed(scene)
        time.sleep(_AWAY_SECONDS * 3 / 4)
        if _renewed(scene) != renewed:
            raise NotSeenError("the controller's lease was renewed all the same")
    return f"nobody renewed the lease; {scene.wait_for_new_controller(before)}"


@fault(
    "leader-killed-without-api-server", "a leader is killed in place while the API server is away"
)
def kill_a_leader_without_an_api_server(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    with scene.kubernetes.api_server_away():
        time.sleep(_AWAY_SECONDS / 4)  # The lease has expired: there is no controller.
        scene.signal(name, "SIGKILL")
        time.sleep(_AWAY_SECONDS / 4)
        if scene.view.partition(key).leader_epoch != before.partition(key).leader_epoch:
            raise NotSeenError("another one led already")
    return f"{name} was killed, and nobody elected; then {scene.wait_for_new_leader(key, before)}"


@fault("api-server-slow", "the API server stands still for 1 s of 1.1 s, and a leader is killed")
def slow_the_api_server_down(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    slowest = 0.0
    with scene.kubernetes.api_server_slow():
        for _ in range(5):
            begun = time.monotonic()
            scene.kubernetes.kubectl("get", "--raw=/version")
            slowest = max(slowest, time.monotonic() - begun)
        if slowest < 0.5:
            raise NotSeenError(f"the API server answered within {slowest:.1f} s")
        scene.signal(name, "SIGKILL")
        seen = scene.wait_for_new_leader(key, before, 120.0)
    return f"an answer took {slowest:.1f} s; {seen}"


@fault("api-server-restarted", "SIGKILL of the API server, and its start")
def restart_the_api_server(scene: Scene) -> str:
    begun = time.monotonic()
    scene.kubernetes.restart_api_server()
    return f"it was ready again after {time.monotonic() - begun:.1f} s"


@fault("controller-lease-stolen", "somebody else is written into the controller's lease")
def steal_the_lease(scene: Scene) -> str:
    before = scene.view
    thief = {"holderIdentity": "thief", "renewTime": "2999-01-01T00:00:00.000000Z"}
    patch = ("--type=merge", "--patch", json.dumps({"spec": thief}))
    scene.namespace("patch", _LEASE, *patch)
    return scene.wait_for_new_controller(before)


@fault("controller-lease-deleted", "the controller's lease is deleted")
def delete_the_lease(scene: Scene) -> str:
    uid = scene.namespace.get(_LEASE)["metadata"]["uid"]
    scene.namespace("delete", _LEASE)
    scene.until(lambda: scene.namespace.get(_LEASE)["metadata"]["uid"] != uid, "there is another")
    return (
        f"there was another lease, held by {scene.namespace.get(_LEASE)['spec']['holderIdentity']}"
    )


def _renewed(scene: Scene) -> str:
    found: str = scene.namespace.get(_LEASE)["spec"]["renewTime"]
    return found
