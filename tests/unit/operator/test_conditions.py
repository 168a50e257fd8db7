"""Conditions keep the time of their last transition."""

from millrace.operator.model.conditions import MESSAGE_LENGTH_MAX, Condition, merged


def test_the_time_of_a_transition_stays_while_the_status_does() -> None:
    first = merged([], [Condition("Ready", False, "Waiting")], generation=1, now="t1")
    second = merged(first, [Condition("Ready", False, "Other")], generation=2, now="t2")
    third = merged(second, [Condition("Ready", True, "Ready")], generation=2, now="t3")
    assert [each[0]["lastTransitionTime"] for each in (first, second, third)] == ["t1", "t1", "t3"]
    assert third[0]["status"] == "True"


def test_a_message_is_cut_to_its_bound() -> None:
    (made,) = merged([], [Condition("Ready", None, "X", "y" * 9999)], generation=1, now="t")
    assert made["status"] == "Unknown"
    assert len(made["message"]) == MESSAGE_LENGTH_MAX
