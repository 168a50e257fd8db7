"""Mutants of consumer groups: their coordinator, and their members."""

from tests.sim.mutants.mutant import mutant

MUTANTS = (
    mutant(
        "a partition is free before its owner has confirmed that it gave it up",
        "P61",
        "millrace.core.groups.group:next_step",
        "if confirmed < current.epoch:",
        "if confirmed < current.epoch and not current.revoking:",
    ),
    mutant(
        "a partition is given to a member while another one owns it",
        "P61",
        "millrace.core.groups.group:Group.free",
        "if self.owners.get(each, member_id) == member_id",
        "if each is not None",
    ),
    mutant(
        "a member reads on what it has given up",
        "P61",
        "millrace.client._consumer.membership:Membership._take",
        "self._reading.end(revoked)",
        "self._reading.end([])",
    ),
    mutant(
        "a member confirms an assignment before it has taken it",
        "P61",
        "millrace.client._consumer.membership:Membership._wait_until_taken",
        "self._told = answer",
        "self._told, self._confirmed = answer, answer.epoch",
    ),
    mutant(
        "a member whose session has ended reads on",
        "P61",
        "millrace.client._consumer.membership:Membership.poll",
        "if self._is_silent(host.monotonic_s()):",
        "if False:",
    ),
    mutant(
        "a member commits with any assignment",
        "P58",
        "millrace.core.groups.group:Current.owned_in",
        "if epoch == self.epoch - 1:",
        "if epoch < self.epoch:",
    ),
    mutant(
        "a member commits for partitions of others",
        "P62",
        "millrace.core.groups.membership:MembershipMachine.check_commit",
        "if each not in owned:",
        "if each is None:",
    ),
    mutant(
        "a commit that comes late takes back the next one of its member",
        "P62",
        "millrace.core.positions.machine:PositionsMachine.handle_commit",
        "if commit is not None:",
        "if False:",
    ),
    mutant(
        "an assignment is not in the log",
        "P59",
        "millrace.core.groups.membership:_Draft.store_current",
        "self._add(CurrentRecord(self.group.name, member_id, current, self._now))",
        "self.group.apply(CurrentRecord(self.group.name, member_id, current, self._now))",
    ),
    mutant(
        "a member that is not heard stays for ever",
        "P61",
        "millrace.broker.runtime.groups:Groups._overdue",
        "if session.ends_at <= now or is_slow:",
        "if is_slow:",
    ),
)
