"""What the operator keeps of certificates in the API server."""

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from tests.fakes.api_objects import FakeApi

from millrace.core.errors import InvalidConfigError
from millrace.operator.kube.applied import Applied, NameTakenError
from millrace.operator.model.certificates import (
    authority_common_name,
    parse_authorities,
    parse_pairs,
)
from millrace.operator.model.cluster import Cluster
from millrace.operator.plan.certificates import USUAL
from millrace.operator.reconcile.certificates import CertificatesReconciler
from millrace.operator.reconcile.renewals import CERTIFICATES
from millrace.operator.reconcile.resources import cluster_of

Document = dict[str, Any]


def cluster(namespace: str = "n", name: str = "c", **more: Any) -> Cluster:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", **more}
    pool = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
    spec = {"pools": [pool], "tls": {}}
    return cluster_of({"metadata": {"generation": 1, **metadata}, "spec": spec})


def ensure(
    api: FakeApi, of: Cluster, *, after: timedelta = timedelta(), is_paused: bool = False
) -> None:
    """Look at the certificates of one broker."""

    async def look() -> None:
        one = CertificatesReconciler(api, Applied(api), lambda: datetime.now(UTC) + after, USUAL)
        replicas = {f"{of.name}-b": 1}
        if is_paused:
            await one.keep(of, replicas)
        else:
            await one.ensure(of, replicas, {}, await one.observe(of, replicas))

    asyncio.run(look())


def secret(api: FakeApi, name: str, namespace: str = "n") -> Document:
    found: Document = api.objects["Secret", namespace, name]
    return found


@pytest.mark.parametrize("name", ["c-ca", "c-b-tls"])
def test_a_secret_of_somebody_else_is_neither_used_nor_touched(name: str) -> None:
    api, theirs = FakeApi(), FakeApi()
    ensure(theirs, cluster())
    found = secret(theirs, name)
    found["metadata"]["ownerReferences"] = [{"kind": "App", "name": "a", "uid": "a"}]
    found["data"]["note"] = ""  # So it is not as ours would be.
    api.put(copy.deepcopy(found))
    with pytest.raises(NameTakenError, match=f"Secret n/{name} is there already and belongs to"):
        ensure(api, cluster())
    assert secret(api, name) == found

    async def seen() -> None:
        one = CertificatesReconciler(api, Applied(api), lambda: datetime.now(UTC), USUAL)
        observed = await one.observe(cluster(), [])
        known = {*parse_authorities(found).values(), *parse_pairs(found).values()}
        assert not known & {*observed.authorities.values(), *observed.pairs.values()}

    asyncio.run(seen())


def test_a_cluster_with_the_longest_names_gets_authorities_whose_names_fit() -> None:
    api, long = FakeApi(), cluster("n" * 63, "c" * 30)
    ensure(api, long)
    found = secret(api, f"{long.name}-ca", long.namespace)
    found["data"] = {file.replace("1.", "9."): text for file, text in found["data"].items()}
    ensure(api, long, after=timedelta(days=241))
    authorities = parse_authorities(secret(api, f"{long.name}-ca", long.namespace))
    assert authorities.keys() == {9, 10}
    subject = x509.load_pem_x509_certificate(authorities[10].certificate).subject
    assert subject.rfc4514_string() == f"CN={authority_common_name(long, 10)}"


def test_authorities_of_other_clusters_and_numbers_have_other_names() -> None:
    assert authority_common_name(cluster(), 1) == "n/c brokers 1"
    assert authority_common_name(cluster("n" * 26, "c" * 26), 9).startswith("n" * 26 + "/c")
    clusters = [
        cluster(namespace, name) for namespace in ("n" * 62, "n" * 63) for name in ("c", "d" * 30)
    ]
    names = {authority_common_name(each, number) for each in clusters for number in range(1, 200)}
    assert len(names) == len(clusters) * 199
    assert max(map(len, names)) == 64


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_wish_that_cannot_be_understood_is_said_and_holds_no_renewal_up(
    is_paused: bool,
) -> None:
    api = FakeApi()
    ensure(api, cluster())
    before = parse_pairs(secret(api, "c-b-tls"))
    asking = cluster(annotations={CERTIFICATES: "true"})
    for days, is_due in ((19, False), (21, True)):
        with pytest.raises(InvalidConfigError, match=f"{CERTIFICATES}: 'true' is no time in UTC"):
            ensure(api, asking, after=timedelta(days=days), is_paused=is_paused)
        assert (parse_pairs(secret(api, "c-b-tls")) != before) is is_due
