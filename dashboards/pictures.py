"""Draws each dashboard from a real Prometheus, with Grafana's own components: `make pictures`.

Three brokers work under load, and one of them is killed and starts again. Prometheus scrapes them,
and runs the queries of all panels over that time. A headless Chromium draws the answers with
`@grafana/ui` (`drawing`), as the dashboard's JSON says. Grafana's server has no part in it. The
pages of the operator and of a Spark job are real, and their numbers are made up.

    python -m dashboards.pictures [--only overview]
"""

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from dashboards import drawing
from PIL import Image
from tests.integration.web.browser import PROGRAM, Browser
from tests.watching import prometheus
from tests.watching.cluster import wait_until, watched_cluster
from tests.watching.panels import board_queries, dashboards, without_data

PICTURES: Final = Path(__file__).parents[1] / "docs" / "pictures"

_HEALTHY_SECONDS: Final = 50
_DEAD_SECONDS: Final = 40
_BACK_SECONDS: Final = 90
_STEP_SECONDS: Final = 1
_TICK_SECONDS: Final = 30
"""Between the times that graphs name. They end just before one, so that no edge cuts one."""
_MADE_UP: Final = {"millrace-operator", "millrace-spark"}
"""Dashboards of pages that `tests/watching/pages.py` serves, without Kubernetes and Spark."""
_SHOWN_FOLDER: Final = "/data"
"""What pictures call the temporary folder of the brokers, which is a part of some labels."""
_WIDTH: Final = 1400
_LOAD_HEIGHT: Final = 2400
"""Of the window in which it is drawn first, so that no panel waits to be scrolled into view."""
_COLORS: Final = 256
_HEIGHT: Final = "document.querySelector('#root > *')?.offsetHeight ?? 0"
_DRAWN_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True)
class Shown:
    """The time that the pictures show, in seconds of the wall clock, and what happened in it."""

    begin: int
    end: int
    caption: str


def main() -> int:
    """Draw the pictures; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [_name(board) for board in dashboards()]
    parser.add_argument("--only", choices=names, help="one dashboard")
    only = parser.parse_args().only
    for is_there, why_not in (
        (prometheus.is_there(), prometheus.WHY_NOT),
        (drawing.is_possible(), drawing.WHY_NOT),
        (PROGRAM is not None, "there is no Chromium: sh requirements/install.sh browser"),
    ):
        if not is_there:
            sys.stderr.write(f"{why_not}\n")
            return 1
    program = drawing.built()
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        found = _answers(Path(folder))
        with _served(program, Path(folder) / "site") as site, Browser(Path(folder)) as browser:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            for answered in found:
                name = _name(answered["board"])
                if only in (None, name):
                    _draw(browser, site, answered, PICTURES / f"dashboard-{name}.png")
    return 0


def _name(board: dict[str, Any]) -> str:
    return str(board["uid"]).removeprefix("millrace-")


def _answers(folder: Path) -> list[dict[str, Any]]:
    """Return each dashboard with what Prometheus answers to its panels, after a kill."""
    with watched_cluster(folder, []) as watched:
        asked = watched.prometheus
        wait_until(asked.is_up, "all pages are scraped")
        began = time.time()
        wait_until(lambda: not without_data(asked, began), "every query returns data")
        time.sleep(_HEALTHY_SECONDS)
        killed = watched.kill_one()
        name, dead = killed.settings["node.name"], time.time()
        time.sleep(_DEAD_SECONDS)
        killed.start()
        back = time.time()
        time.sleep(_BACK_SECONDS)
        caption = f"{name} was killed at {_clock(dead)} and was back at {_clock(back)} UTC."
        end = int(time.time()) // _TICK_SECONDS * _TICK_SECONDS - 1
        shown = Shown(int(dead) - _HEALTHY_SECONDS, end, caption)
        found = json.dumps([_answer(board, asked, shown) for board in dashboards()])
        shortened: list[dict[str, Any]] = json.loads(
            found.replace(str(folder / "brokers"), _SHOWN_FOLDER)
        )
        return shortened


def _answer(board: dict[str, Any], asked: prometheus.Prometheus, shown: Shown) -> dict[str, Any]:
    answers: dict[int, list[dict[str, Any]]] = {}
    for query in board_queries(board, asked, shown.end - shown.begin):
        if query.is_instant:
            found = asked.ask("query", query=query.expr, time=shown.end)
        else:
            span = {"start": shown.begin, "end": shown.end, "step": _STEP_SECONDS}
            found = asked.ask("query_range", query=query.expr, **span)
        answer = {"legend": query.legend, "result": found["result"]}
        answers.setdefault(query.panel_id, []).append(answer)
    return {
        "board": board,
        "answers": answers,
        "from": shown.begin,
        "to": shown.end,
        "step": _STEP_SECONDS,
        "width": _WIDTH,
        "caption": "The numbers are made up." if board["uid"] in _MADE_UP else shown.caption,
    }


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


@dataclass(frozen=True)
class Site:
    """Where the page is: its folder, and its address."""

    folder: Path
    address: str


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _served(program: Path, folder: Path) -> Iterator[Site]:
    """Serve a copy of the page: its icons and fonts are loaded by HTTP."""
    shutil.copytree(program, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Site(folder, f"http://127.0.0.1:{server.server_port}/page.html")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _draw(browser: Browser, site: Site, shown: dict[str, Any], path: Path) -> None:
    (site.folder / "shown.js").write_text(f"window.shown = {json.dumps(shown)};", encoding="utf-8")
    browser.show(width=_WIDTH, height=_LOAD_HEIGHT, scheme="dark")
    browser.open(site.address)
    deadline = time.monotonic() + _DRAWN_SECONDS_MAX
    # React draws when the page is loaded, and the page waits for its fonts.
    while not (height := browser.evaluate(_HEIGHT)) and time.monotonic() < deadline:
        time.sleep(0.1)
    browser.show(width=_WIDTH, height=height, scheme="dark")
    before = b""
    while time.monotonic() < deadline:
        browser.screenshot(path)
        if (now := path.read_bytes()) == before:  # Icons have come.
            _make_small(path)
            return
        before = now
        time.sleep(0.3)
    thrown = [
        event["params"]["exceptionDetails"]
        for event in browser.events
        if event["method"] == "Runtime.exceptionThrown"
    ]
    raise TimeoutError(f"{path.name} is not drawn to its end; the page has thrown {thrown}")


def _make_small(path: Path) -> None:
    """Give a picture a palette: half the bytes, and no difference to see."""
    with Image.open(path) as picture:
        # Keeps colours that few pixels have, as those of a legend, and then those of most pixels.
        small = picture.convert("RGB").quantize(_COLORS, Image.Quantize.MAXCOVERAGE, kmeans=4)
    small.save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
