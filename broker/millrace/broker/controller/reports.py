"""What the controller's decisions tell the people who run a cluster: one line of the log each."""

import logging
from typing import Final, TypeAlias

from millrace.broker import events
from millrace.core.controller.effects import (
    ElectedUncleanly,
    LackingCommitted,
    OlderCopyAccepted,
    TopicGone,
    TopicRaised,
)
from millrace.core.events import AUDIT_LOGGER

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT_LOGGER)

_NAMED_MAX: Final = 10
"""Partitions that one line names."""

Report: TypeAlias = (
    ElectedUncleanly | LackingCommitted | OlderCopyAccepted | TopicGone | TopicRaised
)


def log_report(report: Report) -> None:
    """Log what was decided, once it is stored."""
    match report:
        case LackingCommitted(broker, partitions):
            events.REPLICAS_LACK_RECORDS.log(
                _log,
                broker=broker.broker_id,
                partitions=len(partitions),
                first=[
                    {
                        "partition": f"{topic}-{log_end.topic_partition.partition}",
                        "log_end_offset": log_end.end_offset,
                        "leader_epoch": log_end.leader_epoch,
                        "committed_offset": committed_end.end_offset,
                        "committed_epoch": committed_end.epoch,
                    }
                    for topic, log_end, committed_end in partitions[:_NAMED_MAX]
                ],
            )
        case ElectedUncleanly():
            log_end = report.log_end
            events.UNCLEAN_ELECTION.log(
                _log,
                topic=str(report.topic),
                partition=report.topic_partition.partition,
                leader=report.leader.broker_id,
                leader_epoch=report.leader_epoch,
                # Records of others from there on are lost; None: the leader was not asked.
                log_end_offset=None if log_end is None else log_end.end_offset,
            )
        case OlderCopyAccepted(accepted, epoch, missed):
            events.OLDER_COPY_ACCEPTED.log(
                _audit, broker=accepted, copy_epoch=epoch, lost_epoch=missed
            )
        case TopicGone(topic, topic_id, reason):
            events.TOPIC_GONE.log(_log, topic=str(topic), topic_id=topic_id.hex(), reason=reason)
        case TopicRaised(topic, _, partitions):
            events.TOPIC_RAISED.log(_log, topic=str(topic), partitions=partitions)
