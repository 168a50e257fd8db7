"""The common parts of commands with a producer: options, and the end of the producer."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from millrace.cli.cluster import CLIENT_ID
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.client import SyncProducer

Acks = Literal["all", 1, 0]

_PATIENCE_MS: Final = 30 * 60 * 1000
"""How long a record waits before a command fails: a quota may be small for a large input, and who
waits is told so and may press Ctrl-C."""
_ACKS: Final[dict[str, Acks]] = {"all": "all", "-1": "all", "1": 1, "0": 0}


acks_option = click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    callback=lambda context, parameter, value: _ACKS[value],
    default="all",
    show_default=True,
    help="Which replicas must have a record before it counts as written: all in-sync ones "
    "(all or -1), the leader (1), none (0).",
)
compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of batches.",
)


@contextmanager
def open_producer(bootstrap: str, **settings: Any) -> "Iterator[SyncProducer]":
    """Yield a producer, and deliver its records at the end.

    But not after Ctrl-C, which ends it at once: the broker may be gone, and the delivery timeout
    long. Records that the command reported as not written are not delivered later.
    """
    from millrace.client import SyncProducer

    producer = SyncProducer(
        bootstrap,
        client_id=CLIENT_ID,
        max_block_ms=_PATIENCE_MS,
        delivery_timeout_ms=_PATIENCE_MS,
        **settings,
    )
    try:
        yield producer
    except KeyboardInterrupt:
        producer._abandon()
        raise
    except BaseException:
        with suppress(MillraceError):  # The first error is the one to report.
            producer.close()
        raise
    producer.close()
