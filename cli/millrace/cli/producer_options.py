"""Options that every command with a producer has."""

from collections.abc import Callable
from typing import Any, Final, Literal

import click

Acks = Literal["all", 1, 0]

_ACKS: Final[dict[str, Acks]] = {"all": "all", "1": 1, "0": 0}


def acks_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--acks`."""
    return click.option(
        "--acks",
        type=click.Choice(list(_ACKS)),
        callback=lambda context, parameter, value: _ACKS[value],
        default="all",
        show_default=True,
        help="Who must have a record before it counts as written: all replicas, their leader, "
        "nobody.",
    )(command)


def compression_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--compression`."""
    return click.option(
        "--compression",
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        default="none",
        show_default=True,
        help="What batches are compressed with.",
    )(command)
