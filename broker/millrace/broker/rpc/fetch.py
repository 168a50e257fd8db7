"""The Fetch service, of clients and of followers: `fetch_sessions`, `offset_lookups`, `lags`."""

from dataclasses import dataclass, replace
from typing import Final

from millrace.broker.guard.demands import OF_BROKERS, each
from millrace.broker.rpc.calls import ServiceMethods
from millrace.broker.rpc.fetch_sessions import SessionService
from millrace.broker.rpc.markers import MarkerWriter
from millrace.broker.rpc.offset_lookups import OffsetLookups
from millrace.broker.rpc.transactions import JoinAnswers
from millrace.core.guard.access import Operation, ResourceKind
from millrace.core.replica.replication.leader_session import ENTRIES_IN_REQUEST
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1 import replica_pb2, transactions_pb2

_DESCRIBE: Final = each(Operation.DESCRIBE, ResourceKind.TOPICS)
DEMANDS: Final = {
    "ListOffsets": _DESCRIBE,
    "OffsetsForLeaderEpoch": _DESCRIBE,
    "DescribeLags": _DESCRIBE,
    "Fetch": each(Operation.CONSUME, ResourceKind.TOPICS),
}
"""What each call of clients demands."""


@dataclass(eq=False, kw_only=True)
class ReplicaService(SessionService):
    """Serves `millrace.proto.v1.Replica`, on the replica listener.

    The limits of clients do not apply to brokers: a broker follows as many partitions as it may
    hold, and its messages are as large as those of `LeaderSession`.

    Attributes:
        markers: writes the ends of transactions.
        joins: takes partitions into transactions, and finds those that are there.
    """

    markers: MarkerWriter
    joins: JoinAnswers

    NAME = replica_pb2.DESCRIPTOR.services_by_name["Replica"].full_name

    def configure(self, *, broker_partitions_max: int) -> None:
        """Follow the cluster's settings; open sessions keep their limits."""
        self.entries_max = max(self.limits.request_entries_max, ENTRIES_IN_REQUEST)
        partitions_max = max(self.limits.fetch_session_partitions_max, broker_partitions_max)
        self.session_limits = replace(self.session_limits, partitions_max=partitions_max)

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self.calls.methods(
            self.NAME,
            unary={
                "DescribeLags": (self.lags.describe, pb.DescribeLagsRequest, OF_BROKERS),
                "JoinTransaction": (
                    self.joins.join,
                    transactions_pb2.JoinTransactionRequest,
                    OF_BROKERS,
                ),
                "FindTransaction": (
                    self.joins.find,
                    transactions_pb2.FindTransactionRequest,
                    OF_BROKERS,
                ),
                "WriteMarkers": (
                    self.markers.write,
                    transactions_pb2.WriteMarkersRequest,
                    OF_BROKERS,
                ),
            },
            streams={"Fetch": (self.fetch, OF_BROKERS)},
        )


class FetchService(SessionService):
    """Serves `millrace.proto.v1.Fetch`, on a listener of clients."""

    NAME = pb.DESCRIPTOR.services_by_name["Fetch"].full_name

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lookups = OffsetLookups(
            self.partitions,
            self.reader,
            self.turns,
            wait_ms_max=self.limits.fetch_wait_ms_max,
            listener=self.listener,
        )

    def end_streams(self) -> None:
        """End all sessions and waiting look-ups, because the broker stops."""
        super().end_streams()
        self._lookups.end_waits()

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        lookups = self._lookups
        return self.calls.methods(
            self.NAME,
            unary={
                "ListOffsets": (
                    lookups.list_offsets,
                    pb.ListOffsetsRequest,
                    DEMANDS["ListOffsets"],
                ),
                "OffsetsForLeaderEpoch": (
                    lookups.offsets_for_leader_epoch,
                    pb.OffsetsForLeaderEpochRequest,
                    DEMANDS["OffsetsForLeaderEpoch"],
                ),
                "DescribeLags": (
                    self.lags.describe,
                    pb.DescribeLagsRequest,
                    DEMANDS["DescribeLags"],
                ),
            },
            streams={"Fetch": (self.fetch, DEMANDS["Fetch"])},
        )
