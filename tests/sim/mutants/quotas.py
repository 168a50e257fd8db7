"""Mutants of quotas: who is limited, by how much, and since when."""

from tests.sim.mutants.mutant import mutant

# fmt: off
MUTANTS = (
    mutant("quotas throttle followers", "P72", "millrace.broker.app:Broker._replicate",
           "quotas=None,", "quotas=self._quotas,"),
    mutant("fetched bytes of a topic are not charged", "P73",
           "millrace.broker.rpc.fetch_sessions:FetchStream._on_sent",
           "self._throttle.charge_topic(partition.topic, plan.length)", "pass"),
    mutant("each broker gives the whole limit", "P73", "millrace.core.quotas.meters:Meters._rate",
           "limit / self._brokers if share is None else share", "limit"),
    mutant("brokers do not take up their shares", "P73",
           "millrace.core.quotas.meters:Meters.on_shares",
           "meter.share = min(share, limit)", "meter.share = None"),
    mutant("a bucket saves up for as long as it is idle", "P73",
           "millrace.core.quotas.limiter:Limiter.charge",
           "max(self.paid_until, now - burst_ms)", "self.paid_until"),
    mutant("one broker takes all that is left of a limit", "P73",
           "millrace.core.quotas.shares:divided",
           "min(wanted[broker], left / waiting)", "min(wanted[broker], left)"),
    mutant("a new stream does not wait for what its client owes", "P73",
           "millrace.broker.quotas:Throttle.begin",
           "self.charge(0)", "pass"),
    mutant("the least specific quota counts", "P73",
           "millrace.core.quotas.precedence:QuotaTable.of_caller",
           "for entity in _caller_entities(principal, client_id):",
           "for entity in [*_caller_entities(principal, client_id)][::-1]:"),
    mutant("a broker follows no change of a quota", "P74", "millrace.broker.quotas:Quotas.on_image",
           "if cluster is before:", "if cluster is before or self.meters.table.has_caller_quotas:"),
    mutant("a stream keeps the quotas with which it began", "P74",
           "millrace.broker.quotas:Throttle._follow",
           "if self._generation != self._meters.generation:", "if not self._generation:"),
    mutant("a dropped bucket keeps its debt", "P74", "millrace.core.quotas.meters:Meters._drop",
           "meter.forgive()", "pass"),
    mutant("a debt stays as it was when the limit is raised", "P74",
           "millrace.core.quotas.limiter:Limiter.set_rate",
           "if debt > 0:", "if False:"),
)
# fmt: on
