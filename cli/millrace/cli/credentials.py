"""The files that commands prove themselves with, cluster by cluster.

They come from where the addresses of a cluster come from: those of a profile from the profile, and
others from the environment. Options go before both. So what is for one cluster is never sent to
another one, whichever variables are set.

All clients that a command makes for its cluster find their files in the environment, where an
option or a profile has put them. Those of a second cluster, as of `millrace copy`, are told theirs.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

import click

NONE: Final = "none"
"""Instead of a file: there is none for this cluster, whatever a variable says."""
_NO_FILES: Final = (NONE, "system")


class Credentials(NamedTuple):
    """The files for one cluster, by the names of the settings of clients; empty: see there."""

    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    token_file: str = ""

    def or_else(self, others: "Credentials") -> "Credentials":
        """Return these, and others where one is not given."""
        return Credentials(*(own or other for own, other in zip(self, others, strict=True)))


OF_ENVIRONMENT: Final = Credentials()
"""What the environment says."""
NO_CREDENTIALS: Final = Credentials(NONE, NONE, NONE, NONE)


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return f"MILLRACE_{name.upper()}"


def put(context: click.Context, name: str, value: str) -> None:
    """Have the clients of a command find a file in the environment, until the command ends."""
    before = os.environ.get(variable(name))
    os.environ[variable(name)] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(variable(name), None)
        else:
            os.environ[variable(name)] = before

    context.call_on_close(restore)


def absolute(file: str, folder: Path) -> str:
    """Return a file's name that counts in each folder."""
    if not file or file in _NO_FILES:
        return file
    return str(folder / Path(file).expanduser())
