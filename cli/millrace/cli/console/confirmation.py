"""The question before something that has no way back."""

import sys

import click

from millrace.cli.console.failures import Failure


def confirm(question: str, act: str, done: str = "changed") -> None:
    """Ask, and return only after a yes.

    Args:
        act: the same as a noun, for the message that there is nobody to ask.
        done: what has not happened after a no.

    Raises:
        Failure: the answer is no, or there is no terminal.
    """
    if not sys.stdin.isatty():
        raise Failure(f"{act} needs a yes, and there is no terminal to ask on", "add --yes")
    if not click.confirm(question, err=True):
        raise Failure(f"nothing was {done}")
