"""Connections from this broker to another one's replica listener."""

from typing import Final

from millrace.core.broker_config import LimitsConfig
from millrace.runtime.transport.drpc.connection import ConnectionLimits
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.grpc_channel import Channel

RECEIVED_BYTES_MAX: Final = 1 << 30
"""Bytes of one message: the most that any broker's settings allow, and the largest metadata."""
_CLIENT_ID: Final = "millrace-broker"
_KEPT_BYTES_MAX: Final = 256 << 20
"""Bytes that have arrived from other brokers and were not taken yet; one message may exceed it."""


def connect(address: str, limits: LimitsConfig) -> Channel:
    """Return a connection; nothing is sent before the first call.

    Metadata and batches come whole, and another broker may be set to larger ones than this one.
    """
    return Channel(
        address,
        client_id=_CLIENT_ID,
        options=[
            ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.optimization_target", "throughput"),
            ("grpc.http2.max_frame_size", 1 << 20),
            ("grpc.http2.lookahead_bytes", 4 << 20),
            ("grpc.http2.bdp_probe", 0),
            # One end may give the connection up without the other noticing: a silent follower would
            # wait for its leader's batches until a ping is not answered.
            ("grpc.keepalive_time_ms", limits.replica_keepalive_ms),
            ("grpc.keepalive_timeout_ms", limits.replica_keepalive_ms),
            ("grpc.http2.ping_timeout_ms", limits.replica_keepalive_ms),  # Default: a minute.
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


def new_connector(limits: LimitsConfig) -> Connector:
    """Return what opens connections of DRPC to other brokers."""
    return Connector(
        ConnectionLimits(
            message_bytes_max=RECEIVED_BYTES_MAX,
            keepalive_ms=limits.replica_keepalive_ms,
            dead_after_ms=limits.replica_keepalive_ms,
        ),
        received_bytes_max=_KEPT_BYTES_MAX,
        client_id=_CLIENT_ID,
    )
