"""Brokers 0 to 3, each in its life 10, 11, 12 and 13; `rules` says who is fenced or draining."""

from collections.abc import Mapping

import pytest

from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Restart, Rules
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    PartitionState,
    Reluctance,
    Topic,
)
from millrace.core.metadata.topic_config import parse_overrides
from millrace.core.topics import TopicName

A, B, C, D = (BrokerId(number) for number in range(4))


def life(broker_id: int, broker_epoch: int | None = None) -> BrokerLife:
    epoch = 10 + broker_id if broker_epoch is None else broker_epoch
    return BrokerLife(BrokerId(broker_id), BrokerEpoch(epoch))


def rules(
    fenced: str = "",
    draining: str = "",
    config: Mapping[str, str] | None = None,
    may_elect_unclean: bool = False,
    epochs: Mapping[int, int] | None = None,
    *,
    reluctant: str = "",
) -> Rules:
    """Name brokers by letters: `rules("ab")` has A and B fenced."""
    brokers = {}
    for broker_id in (A, B, C, D):
        letter = "abcd"[broker_id]
        brokers[broker_id] = BrokerRegistration(
            broker_id=broker_id,
            name=letter,
            rack="",
            host="h",
            port=1,
            incarnation_id="i",
            directory_ids=(),
            broker_epoch=BrokerEpoch((epochs or {}).get(broker_id, 10 + broker_id)),
            is_fenced=letter in fenced,
            is_draining=letter in draining,
            reluctance=Reluctance.SLOW_DISK if letter in reluctant else Reluctance.NONE,
        )
    return Rules(
        brokers=brokers, config=parse_overrides(config or {}), may_elect_unclean=may_elect_unclean
    )


def partition(
    *,
    leader: int = A,
    isr: tuple[int, ...] = (A, B, C),
    elr: tuple[int, ...] = (),
    last_known_elr: tuple[int, ...] = (),
    last_known_leader: int = NO_BROKER,
    replicas: tuple[int, ...] = (A, B, C),
    adding: tuple[int, ...] = (),
    committed: int = 0,
) -> PartitionState:
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(5),
        partition_epoch=PartitionEpoch(9),
        isr=tuple(map(life, isr)),
        elr=tuple(map(life, elr)),
        last_known_elr=tuple(map(BrokerId, last_known_elr)),
        committed_end=end(committed),
        last_known_leader=BrokerId(last_known_leader),
        adding=tuple(map(BrokerId, adding)),
    )


def end(offset: int, epoch: int = 3) -> EpochEnd:
    return EpochEnd(LeaderEpoch(epoch), Offset(offset)) if offset else NOTHING_WRITTEN


def members(lives: tuple[BrokerLife, ...]) -> tuple[int, ...]:
    return tuple(each.broker_id for each in lives)


# Who is elected (P25).


def test_a_leader_that_can_stay_stays() -> None:
    state = partition(leader=B)
    assert elections.elect(state, rules()) is state


def test_a_fenced_leader_gives_way_to_the_first_in_sync_replica_and_leaves_the_isr() -> None:
    after = elections.elect(partition(), rules(fenced="a"))
    assert (after.leader, members(after.isr)) == (B, (B, C))
    assert (after.leader_epoch, after.partition_epoch) == (6, 10)


def test_the_order_is_that_of_the_replicas_and_a_wish_is_heard_among_candidates_only() -> None:
    state = partition(replicas=(C, A, B), leader=C)
    assert elections.elect(state, rules(fenced="c")).leader == A
    assert elections.elect(state, rules(fenced="c"), heir=B).leader == B
    assert elections.elect(state, rules(fenced="c"), heir=D).leader == A


def test_a_fenced_follower_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    """P29."""
    after = elections.elect(partition(), rules(fenced="b"))
    assert (after.leader, members(after.isr)) == (A, (A, C))
    assert (after.leader_epoch, after.partition_epoch) == (5, 10)


def test_an_entry_of_another_life_counts_for_nothing() -> None:
    """P37: a zombie put it there."""
    after = elections.elect(partition(), rules(epochs={A: 20}))
    assert (after.leader, members(after.isr)) == (B, (B, C))


def test_an_eligible_replica_leads_when_nobody_is_in_sync() -> None:
    state = partition(leader=NO_BROKER, isr=(), elr=(A, B), last_known_leader=A)
    after = elections.elect(state, rules(fenced="a"))
    assert (after.leader, members(after.isr), members(after.elr)) == (B, (B,), (A,))
    assert after.last_known_leader == NO_BROKER
    assert after.unclean_epoch == NO_LEADER_EPOCH


def test_an_eligible_replica_does_not_lead_while_somebody_is_in_sync() -> None:
    state = partition(isr=(A,), elr=(B,))
    after = elections.elect(state, rules(draining="a"))
    assert after is state


# What an eligible replica has to show (P26).

LOST = partition(leader=NO_BROKER, isr=(), elr=(A, B), last_known_elr=(C,), committed=70)


def test_an_eligible_replica_that_has_shown_what_it_is_counted_on_for_leads() -> None:
    after = elections.elect(LOST, rules(), shown={life(B): True})
    assert (after.leader, members(after.isr), members(after.elr)) == (B, (B,), (A,))
    assert after.committed_end == end(70)
    assert not after.is_recovering
    assert elections.elect(LOST, rules(), B, {life(A): True, life(B): True}).leader == B


def test_one_that_has_not_or_whose_log_is_not_known_or_in_another_life_does_not() -> None:
    assert elections.elect(LOST, rules()) is LOST
    assert elections.elect(LOST, rules(), shown={life(A): False, life(B): False}) is LOST
    assert elections.elect(LOST, rules(), shown={life(A, 9): True}) is LOST
    assert elections.elect(LOST, rules(fenced="a"), shown={life(A): True}) is LOST
    assert elections.candidates(LOST, rules()) == []


def test_a_reluctant_one_has_to_show_it_too() -> None:
    assert elections.elect(LOST, rules(reluctant="ab")) is LOST
    assert elections.elect(LOST, rules(reluctant="ab"), shown={life(B): True}).leader == B


def test_one_that_was_in_sync_until_it_died_has_to_show_it_too() -> None:
    alone = partition(isr=(A,), elr=(B,), committed=70)
    dead = elections.elect(alone, rules(fenced="ab"))
    assert (dead.leader, members(dead.elr), dead.committed_end) == (NO_BROKER, (A, B), end(70))
    assert elections.elect(dead, rules(fenced="b")) is dead
    assert elections.elect(dead, rules(fenced="b"), shown={life(A): True}).leader == A


def test_where_nobody_has_said_what_is_committed_the_first_one_leads() -> None:
    assert elections.elect(partition(leader=NO_BROKER, isr=(), elr=(A, B)), rules()).leader == A


def test_no_unclean_election_takes_place_before_the_logs_of_eligible_replicas_are_known() -> None:
    allowed = rules(may_elect_unclean=True)
    assert elections.elect(LOST, allowed) is LOST
    assert elections.elect(LOST, allowed, shown={life(A): False}) is LOST
    after = elections.elect(LOST, allowed, shown={life(A): False, life(B): False})
    assert (after.leader, after.is_recovering, after.committed_end) == (A, True, NOTHING_WRITTEN)
    one_dead = rules(fenced="b", may_elect_unclean=True)
    assert elections.elect(LOST, one_dead, shown={life(A): False}).leader == A
    both_dead = elections.elect(LOST, rules(fenced="ab", may_elect_unclean=True))
    assert (both_dead.leader, both_dead.is_recovering) == (C, True)


def test_what_eligible_replicas_are_counted_on_for_never_becomes_less() -> None:
    state = elections.with_isr(partition(), rules(), [life(A)], committed_end=end(70))
    assert (members(state.elr), state.committed_end) == ((B, C), end(70))
    assert elections.with_isr(state, rules(), [life(A)], committed_end=end(60)) is state
    more = elections.with_isr(state, rules(), [life(A)], committed_end=end(80, 4))
    assert (more.committed_end, more.leader_epoch) == (end(80, 4), state.leader_epoch)
    assert more.partition_epoch == state.partition_epoch + 1


def test_it_ends_with_the_eligible_replicas() -> None:
    enough = elections.with_isr(
        partition(isr=(A,), elr=(B,), committed=70), rules(), [life(A), life(B)],
        committed_end=end(90),
    )  # fmt: skip
    assert (enough.elr, enough.committed_end) == ((), NOTHING_WRITTEN)
    assert elections.unclean(LOST, life(C)).committed_end == NOTHING_WRITTEN
    with pytest.raises(ValueError, match="no partition can be so"):
        partition(committed=70)


def test_a_leader_whose_log_is_damaged_gives_way_to_whoever_may_show_its_own() -> None:
    """P65. Without such a one it stays what it is."""
    state = partition(isr=(A,), elr=(B,), committed=70)
    after = elections.given_up(state, rules(), frozenset({life(A)}))
    assert (after.leader, members(after.elr), after.committed_end) == (NO_BROKER, (A, B), end(70))
    assert elections.given_up(state, rules(fenced="b"), frozenset({life(A)})) is state
    unclean = rules(may_elect_unclean=True)
    assert elections.given_up(state, unclean, frozenset({life(A)})).leader == NO_BROKER


def test_without_a_candidate_nobody_leads_and_everybody_stays_eligible() -> None:
    after = elections.elect(partition(), rules(fenced="abc"))
    assert (after.leader, after.isr, members(after.elr)) == (NO_BROKER, (), (A, B, C))
    assert after.last_known_leader == A
    assert after.leader_epoch == 6
    assert elections.elect(after, rules(fenced="abc")) is after


def test_a_replica_that_only_follows_is_not_elected_unless_the_topic_says_so() -> None:
    """P30."""
    state = partition(leader=NO_BROKER, isr=(), elr=(A,), last_known_elr=(B,))
    assert elections.elect(state, rules(fenced="a")) is state
    after = elections.elect(state, rules(fenced="a", may_elect_unclean=True))
    assert (after.leader, members(after.isr), after.elr) == (B, (B,), ())
    assert after.is_recovering
    assert (after.leader_epoch, after.unclean_epoch) == (6, 6)


def test_a_clean_candidate_goes_before_an_unclean_one() -> None:
    after = elections.elect(partition(), rules(fenced="a", may_elect_unclean=True))
    assert (after.leader, after.is_recovering) == (B, False)


def test_an_unclean_election_takes_who_was_in_sync_last() -> None:
    state = partition(leader=NO_BROKER, isr=(), last_known_elr=(B, C), last_known_leader=C)
    assert elections.elect(state, rules(may_elect_unclean=True)).leader == B
    state = partition(leader=NO_BROKER, isr=(), last_known_elr=(C,), last_known_leader=C)
    assert elections.elect(state, rules(may_elect_unclean=True)).leader == C


def test_an_unclean_election_takes_who_is_being_added_last() -> None:
    """A and B have catching up to do, and C, which had everything, is dead."""
    moving = partition(leader=C, isr=(C,), replicas=(A, D, B, C), adding=(A, D))
    assert elections.elect(moving, rules(fenced="c", may_elect_unclean=True)).leader == B
    joined = partition(
        leader=NO_BROKER, isr=(), last_known_elr=(A,), replicas=(A, B, C), adding=(A,)
    )
    assert elections.elect(joined, rules(may_elect_unclean=True)).leader == A
    lost = partition(leader=NO_BROKER, isr=(), last_known_leader=B, replicas=(A, B, C), adding=(A,))
    assert elections.elect(lost, rules(fenced="c", may_elect_unclean=True)).leader == A


def test_the_last_known_leader_comes_back_where_it_alone_was_in_sync_last() -> None:
    state = partition(leader=NO_BROKER, isr=(), last_known_elr=(B,), last_known_leader=B)
    assert elections.elect(state, rules(fenced="b")) is state
    after = elections.elect(state, rules())
    assert (after.leader, after.is_recovering, after.last_known_elr) == (B, True, ())
    two = partition(leader=NO_BROKER, isr=(), last_known_elr=(B, C), last_known_leader=B)
    assert elections.elect(two, rules()) is two


def test_a_draining_broker_is_elected_nowhere_and_hands_over_what_it_can() -> None:
    """P32."""
    after = elections.elect(partition(), rules(draining="a"))
    assert (after.leader, members(after.isr)) == (B, (A, B, C))
    alone = partition(isr=(A,), replicas=(A, B))
    assert elections.elect(alone, rules(draining="a")) is alone
    after = elections.elect(partition(isr=(A, B)), rules(fenced="a", draining="b"))
    assert (after.leader, members(after.isr)) == (NO_BROKER, (B,))


def test_a_reluctant_broker_leads_only_what_nobody_else_would() -> None:
    after = elections.elect(partition(), rules(reluctant="a"))
    assert (after.leader, members(after.isr)) == (B, (A, B, C))
    for reluctant in ("abc", "abcd"):  # All are as badly off: nothing moves.
        assert elections.elect(partition(), rules(reluctant=reluctant)).leader == A
    after = elections.elect(partition(isr=(A, B)), rules(fenced="a", reluctant="b"))
    assert (after.leader, members(after.isr)) == (B, (B,))


def test_who_stops_hands_over_to_a_reluctant_broker_before_it_is_gone() -> None:
    after = elections.elect(partition(), rules(draining="a", reluctant="bc"))
    assert (after.leader, members(after.isr)) == (B, (A, B, C))


def test_the_cluster_decides_over_unclean_elections_where_the_topic_does_not() -> None:
    def allowed(overrides: dict[str, str], cluster: bool) -> bool:
        topic = Topic(
            topic_id=TopicId(bytes(16)),
            name=TopicName("default", "t"),
            partitions=(partition(),),
            overrides=overrides,
        )
        config = ClusterConfig(unclean_leader_election_enable=cluster)
        return Rules.of(topic, {}, config).may_elect_unclean

    name = "unclean.leader.election.enable"
    assert [allowed({}, flag) for flag in (False, True)] == [False, True]
    assert [allowed({name: "false"}, flag) for flag in (False, True)] == [False, False]
    assert [allowed({name: "true"}, flag) for flag in (False, True)] == [True, True]


# Who stays eligible (P26).


def test_with_min_isr_in_sync_nobody_else_is_eligible() -> None:
    state = partition(isr=(A,), elr=(B,), last_known_elr=(C,))
    after = elections.with_isr(state, rules(), (life(A), life(C)))
    assert (members(after.isr), after.elr, after.last_known_elr) == ((A, C), (), ())


def test_with_fewer_than_min_isr_who_leaves_stays_eligible() -> None:
    after = elections.with_isr(partition(isr=(A, B)), rules(), [life(A)])
    assert (members(after.isr), members(after.elr)) == ((A,), (B,))
    assert after.leader_epoch == 5


def test_who_left_while_enough_were_in_sync_is_not_eligible() -> None:
    one_less = elections.elect(partition(), rules(fenced="c"))
    assert (members(one_less.isr), one_less.elr) == ((A, B), ())
    nobody = elections.elect(one_less, rules(fenced="abc"))
    assert members(nobody.elr) == (A, B)


@pytest.mark.parametrize(("setting", "eligible"), [("1", ()), ("2", (B,)), ("3", (B,))])
def test_min_isr_is_the_topic_s_setting(setting: str, eligible: tuple[int, ...]) -> None:
    config = {"min.insync.replicas": setting}
    after = elections.with_isr(partition(isr=(A, B)), rules(config=config), [life(A)])
    assert members(after.elr) == eligible


def test_a_lower_min_isr_ends_the_elr_and_refuses_changes_that_rest_on_the_other() -> None:
    state = partition(isr=(A,), elr=(B,))
    after = elections.with_config(state, rules(), rules(config={"min.insync.replicas": "1"}))
    assert (after.elr, after.partition_epoch, after.leader_epoch) == ((), 10, 5)


def test_settings_that_say_nothing_else_of_a_partition_leave_it_as_it_is() -> None:
    state = partition()
    assert elections.with_config(state, rules(), rules(config={"segment.ms": "5000"})) is state
    before = rules(config={"durability": "fsync"})
    assert elections.with_config(state, before, rules(config={"durability": "replicated"})) is state


def test_what_was_committed_before_it_had_to_be_flushed_is_not_taken_for_flushed() -> None:
    before = rules(config={"durability": "replicated"})
    after = rules(config={"durability": "fsync"}, fenced="b")
    changed = elections.with_config(partition(isr=(A, B)), before, after)
    assert (changed.is_unflushed, changed.partition_epoch, changed.leader_epoch) == (True, 10, 5)
    one_less = elections.restarted(changed, after, NEW, Restart.UNCLEAN)
    assert (members(one_less.isr), one_less.elr, one_less.last_known_elr) == ((A,), (), (B,))


def test_once_the_leader_says_that_it_is_flushed_an_unclean_restart_loses_nothing() -> None:
    before = rules(config={"durability": "replicated"})
    after = rules(config={"durability": "fsync"})
    changed = elections.with_config(partition(isr=(A, B)), before, after)
    flushed = elections.with_isr(changed, after, changed.isr, is_unflushed=False)
    assert not flushed.is_unflushed
    fenced = rules(config={"durability": "fsync"}, fenced="b")
    one_less = elections.restarted(flushed, fenced, NEW, Restart.UNCLEAN)
    assert one_less.elr == (NEW,)


def test_a_replica_that_begins_anew_counts_for_nothing_and_the_leader_epoch_grows() -> None:
    state = partition(isr=(A,), elr=(B,), last_known_elr=(C,))
    after = elections.renewed(state, rules(), life(B))
    assert (members(after.isr), after.elr, after.last_known_elr) == ((A,), (), (C,))
    assert after.leader_epoch == 6
    other = elections.renewed(state, rules(), life(C))
    assert (members(other.elr), other.last_known_elr) == ((B,), ())


def test_a_replica_that_nobody_can_do_without_keeps_what_it_has() -> None:
    alone = partition(isr=(A,))
    assert elections.renewed(alone, rules(), life(A)) is alone
    fenced = rules(fenced="a")
    assert elections.renewed(alone, fenced, life(B)) is alone  # Its leader is not there.


def test_the_isr_is_kept_in_the_order_of_the_replicas() -> None:
    after = elections.with_isr(partition(isr=(A,)), rules(), (life(C), life(A), life(B)))
    assert members(after.isr) == (A, B, C)


# Restarts (P27, P37).

NEW = life(B, 20)


@pytest.mark.parametrize(
    ("restart", "durability", "stays"),
    [
        (Restart.CLEAN, "fsync", True),
        (Restart.CLEAN, "replicated", True),
        (Restart.UNCLEAN, "fsync", True),
        (Restart.UNCLEAN, "replicated", False),
        (Restart.LOST_DISK, "fsync", False),
        (Restart.LOST_DISK, "replicated", False),
    ],
)
@pytest.mark.parametrize("was_in_sync", [True, False])
def test_a_restarted_broker_stays_eligible_if_it_has_what_it_had(
    restart: Restart, durability: str, stays: bool, was_in_sync: bool
) -> None:
    state = partition(isr=(A, B)) if was_in_sync else partition(isr=(A,), elr=(B,))
    the_rules = rules(fenced="b", config={"durability": durability})
    after = elections.restarted(state, the_rules, NEW, restart)
    assert members(after.isr) == (A,)
    assert after.elr == ((NEW,) if stays else ())
    may_have_lost_its_tail = restart is Restart.UNCLEAN and not stays
    assert after.last_known_elr == ((B,) if may_have_lost_its_tail else ())


def test_with_another_disk_a_broker_is_last_known_no_more() -> None:
    the_rules = rules(fenced="b", config={"durability": "replicated"})
    state = elections.restarted(partition(isr=(A, B)), the_rules, NEW, Restart.UNCLEAN)
    assert state.last_known_elr == (B,)
    after = elections.restarted(state, the_rules, life(B, 21), Restart.LOST_DISK)
    assert (members(after.isr), after.last_known_elr) == ((A,), ())
    assert after.partition_epoch == state.partition_epoch + 1
    assert elections.restarted(after, the_rules, life(B, 22), Restart.LOST_DISK) is after


def test_an_unclean_election_takes_one_with_its_disk_before_the_last_leader() -> None:
    alone = partition(isr=(A,))
    state = elections.restarted(alone, rules(fenced="a"), life(A, 20), Restart.LOST_DISK)
    assert (state.leader, state.last_known_leader, state.last_known_elr) == (NO_BROKER, A, ())
    assert elections.elect(state, rules(may_elect_unclean=True)).leader == B


def test_a_restarted_broker_is_not_eligible_where_the_others_were_enough() -> None:
    after = elections.restarted(partition(), rules(fenced="b"), NEW, Restart.CLEAN)
    assert (members(after.isr), after.elr, after.last_known_elr) == ((A, C), (), ())


def test_a_restarted_leader_hands_over_in_the_same_step() -> None:
    state = partition(leader=B)
    after = elections.restarted(state, rules(fenced="b"), NEW, Restart.UNCLEAN)
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (A, 6, 10)


def test_the_new_life_cannot_lead_before_it_is_registered() -> None:
    state = partition(leader=B, isr=(B,), replicas=(B,))
    after = elections.restarted(state, rules(fenced="b"), NEW, Restart.UNCLEAN)
    assert (after.leader, after.elr) == (NO_BROKER, (NEW,))
    assert elections.elect(after, rules()).leader == NO_BROKER
    registered = elections.elect(after, rules(epochs={B: 20}))
    assert (registered.leader, registered.isr) == (B, (NEW,))


def test_an_entry_that_was_reserved_for_a_life_that_never_came_is_renamed_again() -> None:
    reserved = elections.restarted(
        partition(leader=B, isr=(B,), replicas=(B,)), rules(fenced="b"), NEW, Restart.CLEAN
    )
    later = life(B, 21)
    after = elections.restarted(reserved, rules(fenced="b"), later, Restart.UNCLEAN)
    assert after.elr == (later,)


def test_moving_a_leadership_to_who_has_it_changes_nothing() -> None:
    state = partition()
    assert elections.moved(state, rules(), A) is state
    after = elections.moved(state, rules(), C)
    assert (after.leader, members(after.isr), after.leader_epoch) == (C, (A, B, C), 6)


def test_recovery_ends_when_the_leader_says_so() -> None:
    state = elections.unclean(partition(), life(C))
    assert (members(state.isr), state.is_recovering) == ((C,), True)
    still = elections.with_isr(state, rules(), [life(C)], is_recovering=True)
    assert still is state
    after = elections.with_isr(state, rules(), [life(C)], is_recovering=False)
    assert (after.is_recovering, after.unclean_epoch) == (False, state.leader_epoch)
    assert after.leader_epoch == state.leader_epoch
