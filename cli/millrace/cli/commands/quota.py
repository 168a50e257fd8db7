"""`millrace quota`: how much clients and topics may produce and fetch."""

from typing import TYPE_CHECKING, Any

import click

from millrace.cli.cluster import completed, connect_admin
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.output import document_of, print_json, print_result, print_table, put, say
from millrace.core.settings import Unit, parse_number

if TYPE_CHECKING:
    from millrace.client import QuotaDescription, QuotaUse


@click.group(
    "quota",
    cls=Group,
    examples="""
    millrace quota set reports --client-id report --fetch 10MB
    millrace quota set others --each-principal --produce 1MB --fetch 2MB
    millrace quota list
    millrace quota describe reports              # who uses it, and who is delayed
    millrace quota delete reports
    """,
)
def command() -> None:
    """Limit how much clients and topics may produce and fetch, and how busy they keep brokers.

    Clients that exceed a quota are delayed, and told so; they get no errors. A change counts at
    once, for clients that are connected, too.
    """


class _Rate(click.ParamType[int]):
    name = "RATE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_number(value.removesuffix("/s"), Unit.BYTES)
        except ValueError as error:
            self.fail(f"{value!r}: {error}; it is bytes a second, such as 10MB", param, ctx)


_complete_name = completed(lambda admin: [quota.name for quota in admin.list_quotas()])


_name_argument = click.argument("name", shell_complete=_complete_name)


@command.command("list", examples="millrace quota list\nmillrace quota list --output json")
@bootstrap_option
@output_option
def list_(bootstrap: str, output: str) -> None:
    """List all quotas."""
    with connect_admin(bootstrap) as admin:
        quotas = admin.list_quotas()
    if not quotas and output == "table":
        say("no quotas yet: make one with `millrace quota set NAME`")
        return
    rows = [
        [
            quota.name,
            quota.subject,
            _rate(quota.produce_bytes_per_second),
            _rate(quota.fetch_bytes_per_second),
            _percent(quota.request_percent),
            _scope(quota),
        ]
        for quota in quotas
    ]
    columns = ["QUOTA", "FOR", "PRODUCE", "FETCH", "REQUEST TIME", "PER"]
    print_result(output, [_document(quota) for quota in quotas], columns, rows)


@command.command(
    "describe",
    examples="""
    millrace quota describe reports
    millrace quota describe reports --output json | jq '.uses[] | select(.delay_ms > 0)'
    """,
)
@_name_argument
@bootstrap_option
@output_option
def describe(name: str, bootstrap: str, output: str) -> None:
    """Show the quota NAME, and what is used of it at each broker.

    LIMIT: what may be used at this broker. A limit for the cluster is divided among the brokers by
    demand, so this changes. DELAY: how long the next request would be delayed now. DELAYED: how
    long requests have been delayed all in all, as long as the broker has counted it; it forgets
    clients that have used nothing for a minute.
    """
    with connect_admin(bootstrap) as admin:
        quota = admin.describe_quotas([name])[name]
    uses = sorted(quota.uses, key=lambda use: (use.kind, _who(use), use.broker_id))
    if output == "json":
        documents = [document_of(use, broker_id="broker") for use in uses]
        print_json({**_document(quota), "uses": documents})
        return
    put(f"{quota.name}: for {quota.subject}, per {_scope(quota)}")
    put(f"  produce: {_rate(quota.produce_bytes_per_second) or 'no limit'}")
    put(f"  fetch: {_rate(quota.fetch_bytes_per_second) or 'no limit'}")
    put(f"  request time: {_percent(quota.request_percent) or 'no limit'}, per broker")
    put()
    if not uses:
        say("nobody uses anything of it now")
        return
    print_table(
        ["KIND", "WHO", "BROKER", "USED", "LIMIT", "DELAY", "DELAYED"],
        [
            [
                use.kind,
                _who(use),
                use.broker_id,
                _amount(use.kind, use.used_per_second),
                _amount(use.kind, use.limit_per_second),
                f"{use.delay_ms:,} ms" if use.delay_ms else None,
                f"{use.throttled_ms / 1000:,.1f} s" if use.throttled_ms else None,
            ]
            for use in uses
        ],
    )


@command.command(
    "set",
    writes=True,
    examples="""
    millrace quota set reports --client-id report --fetch 10MB
    millrace quota set alice --principal alice --produce 5MB --fetch 5MB
    millrace quota set others --each-principal --produce 1MB
    millrace quota set flights --topic flights --produce 20MB
    millrace quota set team-a --namespace team-a --produce 50MB --fetch 100MB
    """,
)
@_name_argument
@click.option("--principal", metavar="NAME", help="For clients with this identity.")
@click.option("--each-principal", is_flag=True, help="For each without a quota of its own.")
@click.option("--client-id", metavar="NAME", help="For clients with this client id.")
@click.option("--each-client-id", is_flag=True, help="For each without a quota of its own.")
@click.option("--topic", metavar="NAME", help="For this topic, all clients together.")
@click.option("--each-topic", is_flag=True, help="For each without a quota of its own.")
@click.option("--namespace", metavar="NAME", help="For the topics of this namespace together.")
@click.option("--each-namespace", is_flag=True, help="For each without a quota of its own.")
@click.option("--produce", type=_Rate(), help="Most bytes a second to produce, such as 10MB.")
@click.option("--fetch", type=_Rate(), help="Most bytes a second to fetch.")
@click.option(
    "--request-percent",
    type=click.IntRange(1, 10_000),
    help="Most time of one processor, on each broker, for the clients' requests.",
)
@click.option(
    "--per-broker", is_flag=True, help="The limits are for each broker, and not for the cluster."
)
@click.option("--validate-only", is_flag=True, help="Check everything, change nothing.")
@bootstrap_option
@output_option
def set_(
    *,
    name: str,
    produce: int | None,
    fetch: int | None,
    request_percent: int | None,
    per_broker: bool,
    validate_only: bool,
    bootstrap: str,
    output: str,
    **whom: str | bool | None,
) -> None:
    """Make the quota NAME, or replace it.

    It is for clients, by --principal, --client-id or both; or for a topic, or for a namespace. Of
    several quotas one counts for a client, the first of: principal and client id; principal and
    each client id; principal; each principal and client id; each principal and each client id; each
    principal; client id; each client id. Those of its topics and their namespaces count beside it.

    A RATE is bytes a second, such as 500kB, 10MB (10,000,000 bytes) or 1MiB.
    """
    entity = {word: _named(word, whom) for word in ("principal", "client_id", "topic", "namespace")}
    with connect_admin(bootstrap) as admin:
        quota = admin.set_quota(
            name,
            **entity,
            produce_bytes_per_second=produce,
            fetch_bytes_per_second=fetch,
            request_percent=request_percent,
            per_broker=per_broker,
            validate_only=validate_only,
        )
    if output == "json":
        print_json(_document(quota))
    say(f"{'would set' if validate_only else 'set'} quota {quota.name}, for {quota.subject}")


def _named(word: str, whom: dict[str, str | bool | None]) -> str | None:
    """Return the name that a quota is for; empty: each without a quota of its own."""
    name = whom[word]
    option = word.replace("_", "-")
    if whom[f"each_{word}"]:
        if name is not None:
            raise click.UsageError(f"--{option} and --each-{option} exclude each other")
        return ""
    if name == "":
        raise click.BadParameter(
            f"must not be empty; write --each-{option} for all others", param_hint=f"--{option}"
        )
    assert not isinstance(name, bool)
    return name


@command.command("delete", writes=True, examples="millrace quota delete reports")
@_name_argument
@bootstrap_option
@output_option
def delete(name: str, bootstrap: str, output: str) -> None:
    """Delete the quota NAME; clients that it delays go on at once."""
    with connect_admin(bootstrap) as admin:
        admin.delete_quota(name)
    if output == "json":
        print_json({"deleted": name})
    say(f"deleted quota {name}")


def _document(quota: "QuotaDescription") -> dict[str, Any]:
    return document_of(quota, leave=["uses"])


def _who(use: "QuotaUse") -> str:
    names = [use.principal, use.client_id, use.topic, use.namespace]
    return " ".join(filter(None, names)) or "all together"


def _scope(quota: "QuotaDescription") -> str:
    limits = quota.produce_bytes_per_second, quota.fetch_bytes_per_second
    return "broker" if quota.per_broker or limits == (None, None) else "cluster"


def _amount(kind: str, amount: int) -> str | None:
    """Write a use or a limit for a person."""
    return f"{amount / 10_000:,.1f} %" if kind == "request" else _rate(amount)


def _percent(percent: int | None) -> str | None:
    return None if percent is None else f"{percent} %"


def _rate(bytes_per_second: int | None) -> str | None:
    """Write a rate for a person, in the units of `--produce`."""
    if bytes_per_second is None:
        return None
    rate = float(bytes_per_second)
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if rate < 1000:
            return f"{rate:,.0f} {unit}" if unit == "B/s" else f"{rate:,.1f} {unit}"
        rate /= 1000
    return f"{rate:,.1f} TB/s"
