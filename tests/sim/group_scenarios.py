"""Scenarios of consumer groups: members that are cut off, late commits, coordinators that die."""

from typing import Final

from tests.sim.clients import Load
from tests.sim.cluster import TopicPlan
from tests.sim.faults import Family, Scene, Undo
from tests.sim.network import Weather
from tests.sim.scenarios import Scenario, ScenarioCluster, again
from tests.sim.world import MILLISECOND, SECOND

_SOON: Final = 100 * MILLISECOND


class Grouped(ScenarioCluster):
    """Three members share four partitions."""

    topics = (
        TopicPlan(
            partitions=4,
            loads=(Load(every_us=3 * _SOON),),
            polls_every_us=_SOON,
            members=3,
        ),
    )


class SlowlyGrouped(ScenarioCluster):
    """They take one record at a time, and after each burst many wait for a while."""

    topics = (
        TopicPlan(
            partitions=4,
            loads=(Load(every_us=120 * _SOON, burst_max=6),),
            polls_every_us=4 * _SOON,
            members=3,
            member_records_max=1,
        ),
    )


def _member(scene: Scene) -> str:
    return scene.dice.choice([each for each in scene.clients if each.startswith("member")])


def _cut_member(scene: Scene) -> Undo | None:
    return scene.cut([_member(scene)], list(scene.machines))


def _delay_member(scene: Scene) -> Undo | None:
    member = _member(scene)
    weather = Weather(lateness=0.1)
    links = [(member, each) for each in scene.machines]
    return scene.network.impose([*links, *((b, a) for a, b in links)], weather)


_LONG: Final = (12 * SECOND, 20 * SECOND)
CUT_OFF: Final = Family(
    "F14", "a member is cut off for longer than its session", _cut_member, _LONG
)
LATE: Final = Family(
    "F18", "what a member says and hears comes up to half a minute late", _delay_member, _LONG
)

GROUP_SCENARIOS: Final = (
    Scenario(
        about="P61",
        name="members are cut off for longer than their session, with records that wait",
        seeds=3,
        quiet_s=40,
        cluster=SlowlyGrouped,
        steps=again(CUT_OFF, 6, 20, 2, 14),
        mutants=["a member that is not heard stays for ever"],
    ),
    Scenario(
        about="P58",
        name="what members say and hear comes late",
        seeds=3,
        quiet_s=25,
        cluster=Grouped,
        steps=again(LATE, 4, 16, 2, 15),
        mutants=["a commit that comes late takes back the next one of its member"],
    ),
    Scenario(
        about="P59",
        name="coordinators are killed again and again",
        seeds=3,
        quiet_s=25,
        cluster=Grouped,
        steps=again("F02", 5, 6, 4, 3),
        mutants=["an assignment is not in the log"],
    ),
)
