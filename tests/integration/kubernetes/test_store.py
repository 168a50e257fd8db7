"""The store on a real API server."""

import base64
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.api_server.running import NAMESPACE, RunningApiServer
from tests.integration.coordination.store_contract import (
    FIRST,
    KEY,
    StoreContract,
    Stores,
    lease,
    read,
    stored,
    swap,
)
from tests.integration.kubernetes.conftest import PATIENT_MS, OpenStore

from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.broker.coordination.store import (
    CoordinationObjectTooLargeError,
    CoordinationUnavailableError,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.runtime.kubernetes.access import from_kubeconfig

OBJECTS = f"/apis/millrace.dev/v1/namespaces/{NAMESPACE}"
OWNER = {"apiVersion": "millrace.dev/v1beta1", "kind": "Cluster", "name": "c", "uid": "u-1"}
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class TestKubernetesStore(StoreContract):
    """The contract, as a user who may do what a broker must and nothing else."""

    @pytest.fixture
    def stores(self, open_store: OpenStore) -> Stores:
        return open_store(), open_store()


@pytest.fixture
def store(open_store: OpenStore) -> KubernetesStore:
    return open_store()


# What the API server itself keeps.


def test_a_zombie_s_write_is_refused_by_the_api_server(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    """Whatever the zombie's own code forgets to check: here it is no code of ours (P36)."""
    swap(store, KEY, stored(1, controller_epoch=5))
    path = f"{OBJECTS}/clusterstates/{cluster_name}"

    def put(
        version: int, controller_epoch: int, state: str = "x", *, is_blind: bool = False
    ) -> tuple[int, str]:
        _, document = api_server.request("GET", path)
        document["spec"] = {
            "version": version,
            "controllerEpoch": controller_epoch,
            "state": state,
        }
        if is_blind:
            del document["metadata"]["resourceVersion"]
        status, answer = api_server.request("PUT", path, document, user="broker")
        return status, answer.get("message", "")

    assert "must be specified for an update" in put(2, 5, is_blind=True)[1]

    for version, controller_epoch, rule in (
        (2, 4, "controllerEpoch must not go back"),
        (3, 5, "version must grow by exactly one"),
        (1, 6, "version must grow by exactly one"),
        (0, 5, "version"),
    ):
        status, message = put(version, controller_epoch)
        assert status == 422
        assert rule in message
    assert put(1, 5, "other")[0] == 422
    assert read(store, KEY) == stored(1, controller_epoch=5)
    assert put(2, 5)[0] == 200


def test_a_shard_belongs_from_its_beginning_to_whom_the_cluster_s_state_belongs(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    def owners(path: str) -> list[str]:
        metadata = api_server.request("GET", f"{OBJECTS}/{path}")[1]["metadata"]
        return [owner["uid"] for owner in metadata.get("ownerReferences", ())]

    swap(store, CLUSTER_KEY, stored(1))
    swap(store, SHARD_KEYS[0], stored(1))
    assert owners(f"stateshards/{cluster_name}-00") == []
    path = f"{OBJECTS}/clusterstates/{cluster_name}"
    _, document = api_server.request("GET", path)
    document["metadata"]["ownerReferences"] = [OWNER]
    assert api_server.request("PUT", path, document)[0] == 200
    swap(store, SHARD_KEYS[1], stored(1))
    assert owners(f"stateshards/{cluster_name}-01") == [OWNER["uid"]]


def test_a_definition_s_rules_let_others_set_labels(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    swap(store, KEY, stored(1))
    path = f"{OBJECTS}/clusterstates/{cluster_name}"
    _, document = api_server.request("GET", path)
    document["metadata"]["labels"]["team"] = "green"
    document["metadata"]["finalizers"] = ["example.com/kept"]
    status, _ = api_server.request("PUT", path, document)
    assert status == 200
    # Our resource version is of before. The refusal makes the controller look again.
    assert not swap(store, KEY, stored(2))
    assert read(store, KEY) == stored(1)
    assert swap(store, KEY, stored(2))
    _, document = api_server.request("GET", path)
    assert document["metadata"]["labels"]["team"] == "green"
    assert document["metadata"]["finalizers"] == ["example.com/kept"]
    document["metadata"]["finalizers"] = []
    assert api_server.request("PUT", path, document)[0] == 200


def test_the_definitions_know_no_object_without_a_state(
    api_server: RunningApiServer, cluster_name: str
) -> None:
    document = {
        "apiVersion": "millrace.dev/v1",
        "kind": "StateShard",
        "metadata": {"name": f"{cluster_name}-00"},
        "spec": {"version": 1, "controllerEpoch": 1},
    }
    status, answer = api_server.request("POST", f"{OBJECTS}/stateshards", document)
    assert status == 422
    assert "spec.state" in answer["message"]


# Loss (F41, F45).


def test_a_deleted_object_is_an_error_and_is_not_made_anew(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    swap(store, KEY, stored(1))
    path = f"{OBJECTS}/clusterstates/{cluster_name}"
    assert api_server.request("DELETE", path)[0] == 200
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match=r"was deleted: restore it"):
            read(store, KEY)
        with pytest.raises(CorruptMetadataError, match=r"was deleted: restore it"):
            swap(store, KEY, stored(2))
        assert not swap(store, KEY, stored(1))
    assert api_server.request("GET", path)[0] == 404


@pytest.mark.parametrize("old", [stored(2, b"old", 5), stored(3, b"old", 4), stored(9, b"old", 4)])
def test_an_object_that_was_replaced_by_an_old_one_is_an_error(
    api_server: RunningApiServer,
    store: KubernetesStore,
    open_store: OpenStore,
    cluster_name: str,
    old: StoredObject,
) -> None:
    for number in (1, 2, 3):
        swap(store, FIRST, stored(number, controller_epoch=5))
    path = f"{OBJECTS}/stateshards/{cluster_name}-00"
    _, document = api_server.request("GET", path)
    api_server.request("DELETE", path)
    spec = {"version": old.version, "controllerEpoch": old.controller_epoch, "state": "old"}
    document = {**document, "metadata": {"name": f"{cluster_name}-00"}, "spec": spec}
    assert api_server.request("POST", f"{OBJECTS}/stateshards", document)[0] == 201
    with pytest.raises(CorruptMetadataError, match=r"replaced by an old one"):
        read(store, FIRST)
    assert not swap(store, FIRST, stored(4, controller_epoch=5))  # The resource version is gone.
    with pytest.raises(CorruptMetadataError, match=r"replaced by an old one"):
        swap(store, FIRST, stored(4, controller_epoch=5))
    found = read(open_store(), FIRST)  # By one who has seen nothing: that is for the broker to say.
    assert found == old


def test_a_namespace_that_is_not_there_is_named_as_the_reason(
    api_server: RunningApiServer, open_store: OpenStore
) -> None:
    with pytest.raises(InvalidConfigError, match=r"crds/|namespace"):
        swap(open_store(access=api_server.admin, namespace="nowhere"), KEY, stored(1))
    with pytest.raises(InvalidConfigError, match="Create the namespace"):
        open_store(access=api_server.admin, namespace="nowhere").compare_and_swap_lease(lease(1))


# Size, and many at a time.


def test_an_object_that_is_too_large_is_refused_before_the_api_server_does(
    store: KubernetesStore,
) -> None:
    with pytest.raises(CoordinationObjectTooLargeError, match="object_bytes_max = 1500000"):
        store.compare_and_swap_all([(KEY, stored(1)), (FIRST, stored(1, b'"' * 750_000))])
    assert store.read_all([KEY, FIRST]) == [None, None]
    assert swap(store, FIRST, stored(1, b'"' * 749_900))  # Each is two bytes on the way.
    assert read(store, FIRST) == stored(1, b'"' * 749_900)


def test_all_objects_are_written_and_read_side_by_side(store: KubernetesStore) -> None:
    keys = [CLUSTER_KEY, *SHARD_KEYS]
    for version in (1, 2):
        writes = [(key, stored(version, key.encode() * 1000)) for key in keys]
        assert store.compare_and_swap_all(writes) == [True] * 33
    assert store.read_all(keys) == [stored(2, key.encode() * 1000) for key in keys]


def test_clusters_of_different_names_share_a_namespace(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    other = KubernetesStore(
        api_server.broker, cluster_name=f"{cluster_name}-x", request_timeout_ms=PATIENT_MS
    )
    swap(store, FIRST, stored(1))
    assert read(other, FIRST) is None
    swap(other, KEY, stored(1))
    assert read(store, KEY) is None
    other.close()


# The lease.


def test_the_lease_is_shown_to_people(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    def spec() -> dict[str, object]:
        _, document = api_server.request("GET", f"{LEASES}/{cluster_name}-controller")
        found: dict[str, object] = document["spec"]
        return found

    store.compare_and_swap_lease(lease(1))
    first = spec()
    assert (first["holderIdentity"], first["leaseDurationSeconds"]) == ("a", 2)
    store.compare_and_swap_lease(lease(2))
    renewed = spec()
    assert renewed["acquireTime"] == first["acquireTime"]
    assert str(renewed["renewTime"]) > str(first["renewTime"])
    assert renewed["leaseTransitions"] == 0
    store.compare_and_swap_lease(lease(3, "b"))
    taken = spec()
    assert str(taken["acquireTime"]) > str(first["acquireTime"])
    assert taken["leaseTransitions"] == 1
    store.compare_and_swap_lease(lease(4, ""))
    assert "holderIdentity" not in spec()


def test_a_deleted_lease_is_made_again_by_one_of_those_who_try(
    api_server: RunningApiServer, open_store: OpenStore, cluster_name: str
) -> None:
    one, other = open_store(), open_store()
    one.compare_and_swap_lease(lease(1))
    one.compare_and_swap_lease(lease(2))
    assert api_server.request("DELETE", f"{LEASES}/{cluster_name}-controller")[0] == 200
    assert not one.compare_and_swap_lease(lease(3))  # Over the one that it knew.
    assert one.read_lease() is None
    assert other.read_lease() is None
    assert one.compare_and_swap_lease(lease(3))
    assert not other.compare_and_swap_lease(lease(3, "b"))
    assert other.read_lease() == lease(3)


def test_a_lease_that_is_taken_away_by_hand_is_seen_to_change(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    store.compare_and_swap_lease(lease(1))
    path = f"{LEASES}/{cluster_name}-controller"
    _, document = api_server.request("GET", path)
    document["spec"]["holderIdentity"] = "thief"
    document["spec"]["leaseDurationSeconds"] = 10**6  # Not to be believed.
    document["spec"]["renewTime"] = "2999-01-01T00:00:00.000000Z"
    assert api_server.request("PUT", path, document)[0] == 200
    assert not store.compare_and_swap_lease(lease(2))
    found = store.read_lease()
    assert found is not None
    assert (found.holder, found.version, found.duration_ms) == ("thief", 2, 1500)
    assert store.compare_and_swap_lease(lease(3))
    assert store.read_lease() == lease(3)


def test_the_lease_says_which_process_holds_it_and_one_of_an_earlier_release_does_not(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    held = replace(lease(1), incarnation="i")
    assert store.compare_and_swap_lease(held)
    assert store.read_lease() == held
    path = f"{LEASES}/{cluster_name}-controller"
    _, document = api_server.request("GET", path)
    del document["metadata"]["annotations"]["millrace.dev/incarnation"]
    assert api_server.request("PUT", path, document)[0] == 200
    assert store.read_lease() == lease(1)


def test_a_lease_of_another_program_may_be_taken(
    api_server: RunningApiServer, store: KubernetesStore, cluster_name: str
) -> None:
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"{cluster_name}-controller"},
        "spec": {"holderIdentity": "theirs", "leaseDurationSeconds": 10**6},
    }
    assert api_server.request("POST", LEASES, document)[0] == 201
    found = store.read_lease()
    assert found is not None
    assert (found.holder, found.duration_ms) == ("theirs", 0)
    assert store.compare_and_swap_lease(lease(2))
    assert store.read_lease() == lease(2)


# Access.


def test_a_kubeconfig_leads_to_the_same_store(
    api_server: RunningApiServer, open_store: OpenStore, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(api_server.kubeconfig())
    swap(open_store(access=from_kubeconfig(path)), KEY, stored(1))
    assert read(open_store(), KEY) == stored(1)


def test_a_kubeconfig_may_bring_a_client_certificate_as_data(
    api_server: RunningApiServer, open_store: OpenStore, tmp_path: Path
) -> None:
    kubeconfig = json.loads(api_server.kubeconfig())
    certificates = api_server.folder / "certificates"
    for name, file in (("certificate", "apiserver.crt"), ("key", "apiserver.key")):
        data = base64.b64encode((certificates / file).read_bytes()).decode()
        kubeconfig["users"][0]["user"][f"client-{name}-data"] = data
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    # Whom the certificate stands for the server does not say; the token does.
    assert read(open_store(access=from_kubeconfig(path)), KEY) is None


def test_who_is_not_allowed_is_told_what_is_missing(
    api_server: RunningApiServer, open_store: OpenStore, tmp_path: Path
) -> None:
    with pytest.raises(CoordinationUnavailableError, match=r"403 .* needs a Role"):
        read(open_store(namespace="default"), KEY)
    kubeconfig = json.loads(api_server.kubeconfig())
    kubeconfig["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    with pytest.raises(CoordinationUnavailableError, match="token was not accepted"):
        read(open_store(access=from_kubeconfig(path)), KEY)


def test_a_server_that_its_authority_does_not_know_is_refused(
    api_server: RunningApiServer, open_store: OpenStore, tmp_path: Path
) -> None:
    kubeconfig = json.loads(api_server.kubeconfig())
    del kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    with pytest.raises(CoordinationUnavailableError, match="certificate verify failed"):
        read(open_store(access=from_kubeconfig(path)), KEY)


def test_a_token_that_is_renewed_is_used_from_then_on(
    api_server: RunningApiServer, open_store: OpenStore
) -> None:
    store = open_store()
    token = api_server.folder / "account-broker" / "token"
    good = token.read_text()
    token.write_text("expired")
    try:
        with pytest.raises(CoordinationUnavailableError, match="401"):
            read(store, KEY)
    finally:
        token.write_text(good)
    assert read(store, KEY) is None


def test_closing_ends_every_thread(open_store: OpenStore, api_server: RunningApiServer) -> None:
    before = set(threading.enumerate())
    store = KubernetesStore(
        api_server.broker, cluster_name="closing", request_timeout_ms=PATIENT_MS
    )
    store.read_all([CLUSTER_KEY, *SHARD_KEYS])
    store.lease_mark()
    assert set(threading.enumerate()) - before
    store.close()
    assert set(threading.enumerate()) - before == set()
