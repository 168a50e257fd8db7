"""How brokers go: in which order their pods, their registrations and their claims do."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.administered_clusters import FakeBrokers, FakeTopic
from tests.fakes.api_objects import FakeApi

from millrace.core.errors import BrokerInUseError, MillraceError
from millrace.core.ids import BrokerId
from millrace.operator.model.objects import Document
from millrace.operator.plan.scaling import pool_sizes, scaling
from millrace.operator.reconcile.resources import cluster_of
from millrace.operator.reconcile.scaling import BROKER_ANNOTATION, ScalingReconciler

OF_BROKER_2 = {"data-c-b-2", "index-c-b-2"}
OF_OTHERS = {f"{volume}-c-b-{number}" for volume in ("data", "index") for number in range(2)}


class KilledError(BaseException):
    """The operator was killed."""


class CutApi(FakeApi):
    """An API server for an operator that is killed before one of its changes."""

    left: int | None = None

    def on_write(self, what: str) -> None:
        """Count a change."""
        if self.left is not None:
            if self.left == 0:
                raise KilledError
            self.left -= 1

    async def patch(self, *given: Any) -> Document:
        """See `FakeApi`."""
        self.on_write("patch")
        return await super().patch(*given)

    async def delete(self, *given: Any, **more: Any) -> None:
        """See `FakeApi`."""
        self.on_write("delete")
        await super().delete(*given, **more)


class Brokers:
    """Three brokers of the pool `b`, which wants two, with two volumes each.

    Attributes:
        pools: of the Cluster: how many brokers each wants, by its name.
    """

    def __init__(self) -> None:
        self.api, self.fakes = CutApi(), FakeBrokers()
        self.fake = self.fakes.of("n", "c")
        self.pools = {"b": 2}
        metadata = {"namespace": "n", "name": "c-b", "uid": "s"}
        self.api.put({"kind": "StatefulSet", "metadata": metadata, "spec": {"replicas": 3}})
        for number in range(3):
            self.fake.join(f"c-b-{number}")
            for volume in ("data", "index"):
                metadata = {"namespace": "n", "name": f"{volume}-c-b-{number}", "uid": volume}
                self.api.put({"kind": "PersistentVolumeClaim", "metadata": metadata})
        self.fake.brokers["c-b-2"] = replace(self.fake.brokers["c-b-2"], is_drained=True)

    def look(self) -> str:
        """Plan, and carry it out; what brokers refuse is tried again.

        Returns:
            What they refuse; empty: nothing.
        """
        pools = [
            {"name": name, "replicas": replicas, "volumes": [{"name": "data", "size": "1Gi"}]}
            for name, replicas in self.pools.items()
        ]
        metadata = {"namespace": "n", "name": "c", "uid": "u", "generation": 1}
        document = {"metadata": metadata, "spec": {"pools": pools}}
        cluster = cluster_of(document)

        async def one() -> str:
            found = await self.fakes.find(cluster)
            assert found is not None
            members = found.members()
            sets = [o for (kind, *_), o in self.api.objects.items() if kind == "StatefulSet"]
            plan = scaling(pool_sizes(cluster, sets, [], members), members, found.placed())
            try:
                await ScalingReconciler(self.api, self.fakes).reconcile(
                    cluster, document, plan, found, stateful_sets=sets, pods=[]
                )
            except MillraceError as error:
                return str(error)
            return ""

        return asyncio.run(one())

    @property
    def claims(self) -> set[str]:
        """The claims that there are."""
        return {name for kind, _, name in self.api.objects if kind == "PersistentVolumeClaim"}

    @property
    def marked(self) -> set[str]:
        """The claims that go with a broker."""
        return {
            name
            for (_, _, name), found in self.api.objects.items()
            if BROKER_ANNOTATION in (found["metadata"].get("annotations") or {})
        }


def test_claims_stay_until_the_controller_has_unregistered_their_broker() -> None:
    brokers = Brokers()
    brokers.look()
    assert brokers.claims == OF_BROKER_2 | OF_OTHERS, "it is alive"
    brokers.fake.leave("c-b-2")
    asked = []

    def unregister(what: str) -> None:
        asked.append((what, brokers.claims))

    brokers.fake.on_write = unregister
    brokers.look()
    assert asked == [("unregister", OF_BROKER_2 | OF_OTHERS)]
    assert brokers.claims == OF_OTHERS
    assert "c-b-2" not in brokers.fake.brokers


def test_a_broker_that_the_controller_keeps_keeps_its_claims() -> None:
    """What the plan was made from was out of date."""
    brokers = Brokers()
    brokers.fake.leave("c-b-2")

    def refuse(what: str) -> None:
        raise BrokerInUseError("it is to hold a replica")

    brokers.fake.on_write = refuse
    brokers.look()
    assert brokers.claims == OF_BROKER_2 | OF_OTHERS
    assert brokers.marked == OF_BROKER_2
    brokers.pools = {"b": 3}
    brokers.look()
    assert not brokers.marked, "it stays after all"
    brokers.fake.on_write = lambda what: None
    brokers.look()
    assert brokers.claims == OF_BROKER_2 | OF_OTHERS


def test_a_broker_goes_also_if_it_is_lost_while_it_gets_its_share() -> None:
    brokers = Brokers()
    known = brokers.fake.brokers["c-b-2"]
    brokers.fake.brokers["c-b-2"] = replace(known, is_drained=False, is_fenced=True)
    topic = brokers.fake.topics["t"] = FakeTopic({}, [(BrokerId(0), BrokerId(1))])
    topic.adding[0] = (BrokerId(2), BrokerId(1))
    for _ in range(4):
        brokers.look()
    assert "c-b-2" not in brokers.fake.brokers
    assert topic.replicas == [(BrokerId(0), BrokerId(1))]
    assert brokers.claims == OF_OTHERS


def test_moves_that_are_all_refused_are_an_error_and_no_event() -> None:
    brokers = Brokers()
    brokers.fake.topics["t"] = FakeTopic({}, [(BrokerId(0), BrokerId(2))])
    brokers.fake.moves_problem = "as many replicas move already as may"
    for _ in range(2):
        assert brokers.look() == "as many replicas move already as may"
    assert brokers.api.told == []
    brokers.fake.moves_problem = ""
    assert brokers.look() == ""
    (told,) = brokers.api.told
    assert "c-b-2" in told


def test_claims_of_a_broker_that_a_person_unregisters_go_too() -> None:
    brokers = Brokers()
    brokers.look()
    del brokers.fake.brokers["c-b-2"]
    brokers.look()
    assert brokers.claims == OF_OTHERS


@pytest.mark.parametrize("changes", range(6))
def test_an_operator_that_is_killed_leaves_no_claim(changes: int) -> None:
    brokers = Brokers()
    brokers.fake.leave("c-b-2")
    brokers.fake.on_write = brokers.api.on_write
    brokers.api.left = changes
    with suppress(KilledError):
        brokers.look()
    if "c-b-2" in brokers.fake.brokers:
        assert brokers.claims == OF_BROKER_2 | OF_OTHERS
    brokers.api.left = None
    brokers.look()
    assert brokers.claims == OF_OTHERS
    assert "c-b-2" not in brokers.fake.brokers
    assert not brokers.marked


def test_the_stateful_set_of_a_removed_pool_stays_until_its_brokers_are_unregistered() -> None:
    """Where volumes are deleted with it, Kubernetes deletes the claims, too."""
    brokers = Brokers()
    brokers.pools = {"other": 3}
    for number in range(3):
        brokers.fake.join(f"c-other-{number}")
        name = f"c-b-{number}"
        brokers.fake.brokers[name] = replace(brokers.fake.brokers[name], is_drained=True)
    key = "StatefulSet", "n", "c-b"
    brokers.look()
    assert brokers.api.objects[key]["spec"]["replicas"] == 0
    for number in range(3):
        brokers.fake.leave(f"c-b-{number}")
    brokers.look()
    assert key in brokers.api.objects
    assert not brokers.claims
    brokers.look()
    assert key not in brokers.api.objects
