"""Takes the pictures of the web page and of `millrace top`: `make pictures`.

Three brokers of `millrace up` hold topics with JSON records. A group reads one of them slowly while
a producer goes on, so there are rates and a lag to see. A headless Chromium opens the page that
`millrace up` serves. `millrace top` is drawn by its own functions, as rich's image of a terminal.
"""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from tests.background import running
from tests.integration.web.browser import Browser

from millrace.cli.top.look import Look, look_at
from millrace.cli.top.screen import Line, lines_of, screen
from millrace.cli.top.summary import summarize
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

PICTURES: Final = Path(__file__).with_name("pictures")

ORDERS: Final = "shop/orders"
GROUP: Final = "billing"
_PAGES: Final = (
    ("web-cluster", "/", (1100, 510), "light"),
    ("web-records", f"/records?topic={ORDERS}&partition=1", (1100, 660), "dark"),
    ("web-group", f"/group?name={GROUP}", (1100, 630), "light"),
    ("web-phone", f"/record?topic={ORDERS}&partition=1&offset=100", (390, 800), "dark"),
)
"""The name of each picture, the page, its width and height, and its colours."""

_TOPICS: Final = {ORDERS: 6, "shop/payments": 3, "clicks": 3}
"""Partitions by topic."""
_WRITTEN_FIRST: Final = 3000
_PER_ROUND: Final = 40
_ROUND_SECONDS: Final = 0.1
_ROUNDS_MAX: Final = 1200
_READ_SECONDS: Final = 0.25
_TERMINAL: Final = (104, 17)
_LOOK_SECONDS: Final = 2.0
_DEADLINE_SECONDS: Final = 60.0


def main() -> None:
    """Take all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, _brokers(Path(folder) / "data") as up:
        bootstrap = ",".join(broker["address"] for broker in up["brokers"])
        with SyncAdmin(bootstrap) as admin:
            for topic, partitions in _TOPICS.items():
                admin.create_topic(topic, partitions, replication_factor=3)
            admin.set_quota("reports", client_id="report", fetch_bytes_per_second=10_000_000)
            with running(partial(_write, bootstrap)), running(partial(_read, bootstrap)):
                before, now = _look_under_load(admin)
                _draw_top(before, now)
                _take_pages(Path(folder), up["web_address"])


@contextmanager
def _brokers(data: Path) -> Iterator[dict[str, Any]]:
    """Run `millrace up` on any ports; yield what it says when it is ready."""
    command = [
        *(sys.executable, "-m", "millrace.cli", "up", "--brokers", "3", "--port", "0"),
        *("--data-dir", str(data), "--output", "json"),
    ]
    quiet = os.environ | {"MILLRACE_BROKER__LOGGING__LEVEL": "warning"}
    quiet |= {"MILLRACE_BROKER__LOGGING__AUDIT": "refusals"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=quiet) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()  # It ends its brokers.


def _write(bootstrap: str, is_over: threading.Event) -> None:
    with SyncProducer(bootstrap, linger_ms=20) as producer:
        number = 0
        for round_number in range(_ROUNDS_MAX):
            for _ in range(_WRITTEN_FIRST if round_number == 0 else _PER_ROUND):
                number += 1
                customer = f"c{number * 7 % 113}"
                order = {
                    "id": 80_000 + number,
                    "customer": customer,
                    "total": number * 37 % 9000 / 100,
                    "items": [{"sku": f"A-{number * 11 % 997}", "count": number % 5 + 1}],
                }
                payment = {"order": order["id"], "total": order["total"], "method": "card"}
                click = {"page": f"/products/{number * 13 % 401}", "ms": number * 17 % 300}
                for topic, value in zip(_TOPICS, (order, payment, click), strict=True):
                    producer.send(topic, json.dumps(value).encode(), key=customer.encode())
            if is_over.wait(_ROUND_SECONDS):
                return


def _read(bootstrap: str, is_over: threading.Event) -> None:
    """Read more slowly than records come."""
    with SyncConsumer(bootstrap, group=GROUP, auto_commit_interval_ms=500) as consumer:
        consumer.subscribe([ORDERS])
        while not is_over.wait(_READ_SECONDS):
            consumer.poll(timeout_ms=100, max_records=_PER_ROUND)


def _look_under_load(admin: SyncAdmin) -> tuple[Look, Look]:
    """Return two looks one after the other, when the group has read and committed."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    before = look_at(admin)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)  # Rates are over this time.
        now = look_at(admin)
        summary = summarize(before, now)
        groups = summary.groups or ()
        if any(group.lag.records and group.lag.milliseconds for group in groups) and all(
            topic.rates.bytes for topic in summary.topics
        ):
            return before, now
        before = now
    raise TimeoutError("the group did not read, or the topics have no rates")


def _draw_top(before: Look, now: Look) -> None:
    width, height = _TERMINAL
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    footer = Line("q quit   s order by name", "dim")
    console.print(screen(lines_of(summarize(before, now), width, height - 2), footer, height))
    drawn = console.export_svg(title="millrace top", unique_id="top")
    # Rich has its fonts fetched from elsewhere. A picture of the documents loads nothing.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    (PICTURES / "top.svg").write_text(drawn, encoding="utf-8")


def _take_pages(folder: Path, address: str) -> None:
    with Browser(folder) as browser:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        for name, path, (width, height), scheme in _PAGES:
            browser.show(width=width, height=height, scheme=scheme)
            browser.open(address + path)
            browser.screenshot(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
