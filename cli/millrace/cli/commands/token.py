"""`millrace token`: the tokens that brokers know, in the file that they read."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from millrace.cli.command import Group, output_option
from millrace.cli.console.output import print_json, print_result, put, say
from millrace.core.guard.identity import principal_problem
from millrace.core.guard.token_file import TokenEntry
from millrace.core.settings import Unit, parse_number


@click.group(
    "token",
    cls=Group,
    examples="""
    millrace token new shop-orders --out orders.token
    millrace token new reports --group analysts --expires-in 90d
    millrace token list
    millrace token remove shop-orders
    """,
)
def command() -> None:
    """Give out tokens, and take them back: brokers know by them who calls.

    Brokers read the file again within a second (access.tokens_file, `millrace up --access`). It has
    no token, only what recognises one. Clients get theirs by token_file or MILLRACE_TOKEN_FILE.
    docs/security.md has the rest.
    """


file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MILLRACE_TOKENS_FILE",
    show_envvar=True,
    default="access/tokens",
    show_default=True,
    help="The file that the brokers read.",
)


class _Name(click.ParamType[str]):
    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if problem := principal_problem(value):
            self.fail(problem, param, ctx)
        return str(value)


class _Time(click.ParamType[int]):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_number(value, Unit.MILLISECONDS)
        except ValueError as error:
            self.fail(f"{value!r}: {error}; it is a time, such as 90d", param, ctx)


@command.command(
    "new",
    examples="""
    millrace token new shop-orders --out orders.token
    millrace token new reports --group analysts --expires-in 90d
    """,
)
@click.argument("name", type=_Name())
@file_option
@click.option(
    "--group", "groups", type=_Name(), multiple=True, help="A group of NAME; may be repeated."
)
@click.option("--expires-in", type=_Time(), help="When it ends.  [default: never]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token there, for its owner alone, and do not print it.",
)
@output_option
def new(
    name: str,
    *,
    path: Path,
    groups: tuple[str, ...],
    expires_in: int | None,
    out: Path | None,
    output: str,
) -> None:
    """Make a token that proves its sender to be NAME, and print it: it cannot be shown again.

    NAME may have several: give the new one out, and remove the old one then.
    """
    from millrace.cli.files.token_store import add_token, write_privately

    token, entry = add_token(path, name, groups, expires_in)
    if out is not None:
        write_privately(out, token + "\n")
    if output == "json":
        print_json(_document(entry) | {"token": token if out is None else None})
    elif out is None:
        put(token)
    say(f"{name} has the token {entry.token_id}; brokers that read {path} take it within a second")


@command.command("list", examples="millrace token list\nmillrace token list --output json")
@file_option
@output_option
def list_(path: Path, output: str) -> None:
    """List the tokens that brokers know: their names, groups and ends."""
    from millrace.cli.files.token_store import read_tokens

    documents = [_document(entry) for entry in read_tokens(path)]
    rows = [
        [
            document["name"],
            document["id"],
            ", ".join(document["groups"]),
            document["expires_at"] or "never",
        ]
        for document in documents
    ]
    print_result(output, documents, ["NAME", "TOKEN", "GROUPS", "ENDS"], rows)


@command.command(
    "remove",
    examples="""
    millrace token remove shop-orders
    millrace token remove shop-orders --id 1f3a9c02      # one of several
    """,
)
@click.argument("name")
@file_option
@click.option("--id", "token_id", help="Only this one, by the id that `list` shows.")
@output_option
def remove(name: str, path: Path, token_id: str | None, output: str) -> None:
    """Take back the tokens of NAME: streams that have them end within seconds."""
    from millrace.cli.files.token_store import changing, named

    with changing(path) as entries:
        gone = named(entries, name, token_id)
        entries[:] = [entry for entry in entries if entry not in gone]
    if output == "json":
        print_json([_document(entry) for entry in gone])
    say(f"removed {', '.join(entry.token_id for entry in gone)} of {name}")


def _document(entry: TokenEntry) -> dict[str, Any]:
    ends = entry.expires_at
    return {
        "name": entry.principal,
        "id": entry.token_id,
        "groups": list(entry.groups),
        "expires_at": None
        if ends is None
        else datetime.fromtimestamp(ends / 1000, UTC).isoformat(timespec="seconds"),
    }
