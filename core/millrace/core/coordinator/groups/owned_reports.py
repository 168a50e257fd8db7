"""KIP-848's members in groups of Millrace's own: what they are told, and what they confirm.

Millrace's member confirms that it has given up partitions by the epoch that it sends. One of
KIP-848 takes a new epoch at once, and says what it owns after it has given up the rest. So as long
as it has to give up something, it is told the epoch before, with what it keeps; what is new to it
follows. In that epoch it may still commit what it gives up.

As in Kafka, the report of a member that has not heard the last answer counts as one that has. So
after a lost answer two members may read a partition for a moment; commits of the one that does not
own it are refused.

Source: KIP-848; Kafka's CurrentAssignmentBuilder.
"""

from millrace.core.coordinator.groups.group import Current, Partitions


def told(current: Current) -> tuple[int, Partitions]:
    """Return the epoch and the partitions that a member is told."""
    if current.revoking:
        return current.epoch - 1, current.assigned - current.gained
    return current.epoch, current.assigned


def confirmed(current: Current, epoch: int, owned: Partitions | None) -> int:
    """Return the epoch that a heartbeat confirms.

    Args:
        current: what the member owns, as the coordinator has it.
        epoch: that the member sends.
        owned: what it says that it owns; None: it does not say.
    """
    if not current.revoking or epoch != current.epoch - 1 or owned is None:
        return epoch
    return current.epoch if current.revoking.isdisjoint(owned) else epoch
