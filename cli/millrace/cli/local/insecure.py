"""`--insecure`: brokers that others reach start without TLS, or without rules."""

from typing import Final

import click

INSECURE: Final = {"MILLRACE_BROKER__INSECURE": "true"}
"""The same as a variable of a broker's process."""
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Start also where other machines reach a listener without TLS, or without rules of who "
    "may do what.",
)
