"""`millrace top`: brokers, topics and groups at a glance, with what is wrong on top."""

import threading
from typing import TYPE_CHECKING

import click

from millrace.cli.cluster import connect_admin
from millrace.cli.command import Command, bootstrap_option, interval_option, output_option
from millrace.cli.console.failures import Failure
from millrace.cli.console.output import print_json, put
from millrace.cli.console.standard_streams import wait
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.cli.top.look import Look
    from millrace.client import SyncAdmin

_KEY_S = 0.2
"""How long the view waits for a key before it looks whether anything is new."""
_REQUEST_TIMEOUT_MS = 10_000


@click.command(
    "top",
    cls=Command,
    examples="""
    millrace top
    millrace top --interval 5
    millrace top --once | head                       # a plain table, with the rates of 2 s
    millrace top --once --output json | jq .problems
    """,
)
@click.option("--once", is_flag=True, help="Print it once, after one interval, and end.")
@interval_option("Time between two looks.")
@bootstrap_option
@output_option
def command(once: bool, interval: float, bootstrap: str, output: str) -> None:
    """Show brokers, topics and groups at a glance, live, with what is wrong on top.

    Keys: q ends it, s changes the order of topics and groups between rate or lag, and name.

    RECORDS/S and IN/S are what producers append, OUT/S what consumers fetch; copies for followers
    are not counted. LOGS is the size of all logs of a broker, SIZE that of one copy of a topic. A
    dash stands for what is not known. Topics whose rates differ by less than a factor of two keep
    the order of their names, so that rows do not jump.

    With --output json it prints one document for each look.
    """
    with connect_admin(bootstrap, request_timeout_ms=_REQUEST_TIMEOUT_MS) as admin:
        if once or output == "json":
            _print(admin, interval, output, once=once)
        else:
            _watch(admin, interval)


def _print(admin: "SyncAdmin", interval: float, output: str, *, once: bool) -> None:
    from millrace.cli.top.look import look_at
    from millrace.cli.top.screen import lines_of
    from millrace.cli.top.summary import summarize

    before = look_at(admin)
    while True:
        wait(interval)
        now = look_at(admin)
        summary = summarize(before, now)
        if output == "json":
            print_json(summary.document(), indent=2 if once else None)
        else:
            for line in lines_of(summary):
                put(line.text)
        if once:
            return
        before = now


def _watch(admin: "SyncAdmin", interval: float) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        raise Failure("millrace top needs a terminal", "add --once, or --output json")
    with _Looks(admin, interval) as looks:
        _show(looks, console)


def _show(looks: "_Looks", console: "Console") -> None:
    """Show the newest looks until q is pressed.

    The screen is written as a whole, and only when what it shows has changed: it does not flicker.
    """
    from rich.live import Live

    from millrace.cli.top.keyboard import Keyboard
    from millrace.cli.top.screen import Line, lines_of, screen
    from millrace.cli.top.summary import summarize

    by_name, shown = False, None
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            state = (looks.newest, looks.trouble, by_name, console.size)
            if state != shown:
                shown = state
                footer = Line(f"q quit   s order by {'rate' if by_name else 'name'}", "dim")
                lines = [Line("asking the brokers ...")]
                if looks.newest is not None:
                    summary = summarize(*looks.newest, by_name=by_name)
                    lines = lines_of(summary, console.width, console.height - 2)
                if looks.trouble:
                    lines.insert(0, Line(looks.trouble, "bold red"))
                live.update(screen(lines, footer, console.height), refresh=True)
            match keyboard.wait(_KEY_S):
                case "q" | "Q":
                    return
                case "s" | "S":
                    by_name = not by_name


class _Looks:
    """Looks at a cluster again and again, in a thread: keys work while a broker is slow.

    Attributes:
        newest: the last two looks, the first one None at first; None: none has ended yet.
        trouble: why the last one failed; empty: it did not.
    """

    def __init__(self, admin: "SyncAdmin", interval: float) -> None:
        self._admin, self._interval = admin, interval
        self._ended = threading.Event()
        self.newest: tuple[Look | None, Look] | None = None
        self.trouble = ""

    def __enter__(self) -> "_Looks":
        threading.Thread(target=self._run, name="looks", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        from millrace.cli.top.look import look_at

        while not self._ended.is_set():
            try:
                now = look_at(self._admin)
            except MillraceError as error:
                self.trouble = f"no answer: {error.message}"
            else:
                self.newest = (None if self.newest is None else self.newest[1], now)
                self.trouble = ""
            self._ended.wait(self._interval)
