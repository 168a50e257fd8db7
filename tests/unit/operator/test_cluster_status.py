"""What the conditions of a Cluster say."""

from dataclasses import replace
from typing import Any

from millrace.operator.model.conditions import Condition
from millrace.operator.model.security import AccessMode, Security, TlsMode
from millrace.operator.plan.growth import Growth
from millrace.operator.plan.lost import LostBroker
from millrace.operator.plan.rolling import Done
from millrace.operator.plan.scaling import Scaling
from millrace.operator.plan.security import Secured
from millrace.operator.plan.spread import Crowd
from millrace.operator.reconcile.cluster_status import Look, status_conditions

PLAIN = Security(TlsMode.DISABLED, AccessMode.DISABLED)
BETWEEN = Security(TlsMode.OPTIONAL, AccessMode.LOGGED)
LAST = Security(TlsMode.REQUIRED, AccessMode.ENFORCED)
WELL = Look(
    *((), "", None, Scaling(replicas={}), (), Done(), Growth()),
    is_placing=False,
    outside=None,
    certified=None,
    secured=Secured([LAST], LAST, LAST),
)


def condition(type: str, **facts: Any) -> Condition:
    (found,) = [
        condition
        for condition in status_conditions(replace(WELL, **facts))
        if condition.type == type
    ]
    return found


def lost(*needed_for: str) -> list[LostBroker]:
    pod, claim = {"metadata": {"name": "c-b-0"}}, {"metadata": {"name": "data-c-b-0"}}
    return [LostBroker(pod, (claim,), needed_for)]


def test_a_lost_volume_is_given_up_only_where_others_have_its_records() -> None:
    assert "delete these claims and the pod" in condition("VolumesPresent", lost=lost()).message
    needed = condition("VolumesPresent", lost=lost("t-0", "t-1")).message
    assert "no other broker is known to have all records of t-0, t-1" in needed
    assert "Bring the node back; without it, records" in needed
    assert "delete" not in needed
    assert "Replace" not in needed


def test_a_stateful_set_that_is_made_again_for_larger_volumes_is_named() -> None:
    growth = Growth(recreate=({"metadata": {"name": "c-b"}},))
    assert condition("VolumesSized", growth=growth).message.startswith("c-b: the StatefulSet")
    growing = condition("VolumesSized", growth=replace(growth, under_way=("data-c-b-0",)))
    assert growing.message == "1 claim grows, as data-c-b-0"


def test_the_way_to_tls_and_access_is_told() -> None:
    found = condition("SecurityAsWanted", secured=Secured([PLAIN, BETWEEN], LAST, BETWEEN))
    assert (found.is_true, found.reason) == (False, "SecurityChanges")
    assert found.message == (
        "TLS goes from Disabled to Optional, and then to Required; "
        "access goes from Disabled to Logged, and then to Enforced, a broker after the other"
    )
    found = condition("SecurityAsWanted", secured=Secured([BETWEEN], BETWEEN, BETWEEN))
    assert found.is_true
    assert "what will be refused when access is Enforced" in found.message
    found = condition("SecurityAsWanted", secured=Secured([PLAIN], PLAIN, PLAIN))
    assert "in plain text" in found.message
    assert condition("SecurityAsWanted").message == "TLS is Required, and access Enforced"


def test_brokers_that_share_a_node_without_need_are_named_with_what_to_do() -> None:
    assert condition("Spread").is_true
    crowd = Crowd("n1", ("c-b-0", "c-b-2"), "c-b-2", "n3")
    found = condition("Spread", crowds=[crowd, crowd])
    assert (found.is_true, found.reason) == (False, "NodeShared")
    assert found.message == (
        "c-b-0 and c-b-2 run on the node n1, whose loss takes them all, and n3 has no broker "
        "(1 more node is shared). While Healthy is true, let one move: kubectl delete pod c-b-2"
    )
