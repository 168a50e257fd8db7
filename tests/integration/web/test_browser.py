"""The web page in a browser: dark, light and small, by keyboard, and with hostile records."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.guarded import GuardedBroker, token_of
from tests.integration.web.browser import PROGRAM, Browser
from tests.integration.web.conftest import ODD, WebPage

from millrace.client import SyncAdmin

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="there is no chromium: make test installs it where it may"
)
PATHS = [
    "/",
    "/brokers",
    "/broker?id=0",
    "/topics",
    "/topic?name=shop/orders",
    "/groups",
    "/group?name=billing",
    "/transactions",
    "/transactions?all=yes",
    "/transaction?id=shop/checkout",
    "/quotas",
    "/records?topic=odd&offset=0",
    "/records?topic=shop/orders",
    "/record?topic=shop/orders&partition=0&offset=0",
    "/token",
    "/nothing",
]
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
CONTRAST = """
(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number)
      .map(x => x / 255).map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = each => {
    for (let at = each; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      if (!found.startsWith("rgba") || !found.endsWith(", 0)")) return found;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  for (const each of document.querySelectorAll("body *")) {
    if (![...each.childNodes].some(one => one.nodeType === 3 && one.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(each).color), light(back(each))];
    worst = Math.min(worst, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_a_page_fits_its_screen_and_can_be_read(
    browser: Browser, page: WebPage, path: str, scheme: str, width: int
) -> None:
    browser.show(width=width, height=800, scheme=scheme)
    browser.open(page.address + path)
    assert not browser.evaluate(TOO_WIDE), "the page scrolls sideways"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 24, 27)"
    )
    assert browser.evaluate(CONTRAST) >= 4.5, "WCAG 2.2, 1.4.3"
    assert browser.evaluate("document.documentElement.lang") == "en"
    assert browser.evaluate("document.querySelectorAll('h1, main, nav').length") == 3
    assert browser.evaluate("[...document.querySelectorAll('input:not([type=hidden]), select')]"
                            ".every(each => each.labels.length === 1)")  # fmt: skip


def test_hostile_records_run_nothing_and_load_nothing(browser: Browser, page: WebPage) -> None:
    browser.events.clear()
    for path in ["/records?topic=odd&offset=0"] + [
        f"/record?topic=odd&offset={offset}" for offset in range(len(ODD))
    ]:
        browser.open(page.address + path)
        assert browser.evaluate("document.title").endswith("· Millrace")
        assert browser.evaluate("document.scripts.length + document.images.length") == 0
    asked = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    # `data:` is the browser's own calendar: the page's policy allows no such image.
    assert [address for address in asked if not address.startswith((page.address, "data:"))] == []
    assert [event for event in browser.events if event.get("method") == "Log.entryAdded"] == []


def test_a_script_would_not_run_even_if_it_got_into_a_page(browser: Browser, page: WebPage) -> None:
    browser.open(page.address + "/")
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = \"broken\"'}))"
    )
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<a id=bad href=\"javascript:void("
        'document.title=1)" onclick="document.title=2">x</a>\'); bad.click()'
    )
    assert browser.evaluate("document.title") == "Cluster · Millrace"


def test_the_keyboard_alone_leads_to_the_records(browser: Browser, page: WebPage) -> None:
    browser.show(width=1200, height=800, scheme="light")
    browser.open(page.address + "/topics?find=orders")
    focused = "document.activeElement.textContent"
    browser.press("Tab")
    assert browser.evaluate(focused) == "Skip to the content"
    for _ in range(20):
        browser.press("Tab")
        if browser.evaluate(focused) == "records":
            break
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.act(lambda: browser.press("Enter"))
    assert browser.evaluate("document.querySelector('h1').textContent") == (
        "Records of shop/orders"
    )
    for _ in range(20):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.name") == "key":
            break
    browser.write("customer-3")
    browser.act(lambda: browser.press("Enter"))
    assert "with this key" in browser.evaluate("document.querySelector('main').textContent")


def test_a_visitor_gives_a_token_and_takes_it_back(browser: Browser, tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path)
    broker.start()
    try:
        with SyncAdmin(broker.address, token_file=str(broker.token_file("root"))) as admin:
            admin.create_topic("team/orders")
        page = WebPage(broker.address)
        try:
            _visit(browser, page)
        finally:
            page.close()
    finally:
        broker.abandon()


def _visit(browser: Browser, page: WebPage) -> None:
    title = "document.querySelector('h1').textContent"
    shown = "document.querySelector('main').textContent"
    browser.open(f"{page.address}/topics?find=orders")
    assert browser.evaluate(title) == "Who are you?"
    field = "document.querySelector('input[name=token]')"
    assert browser.evaluate(f"{field}.autofocus")
    browser.evaluate(f"{field}.focus()")
    browser.write("mlr_nobody_has_this_token")
    browser.act(lambda: browser.press("Enter"))
    assert "does not accept the token" in browser.evaluate(shown)
    browser.evaluate(f"{field}.focus()")
    browser.write(token_of("consumer"))
    browser.act(lambda: browser.press("Enter"))
    assert browser.evaluate(title) == "Topics"
    assert "team/orders" in browser.evaluate(shown)
    assert browser.evaluate("location.href") == f"{page.address}/topics?find=orders"
    assert browser.evaluate("document.cookie") == "", "no script could read it"
    browser.act(lambda: browser.evaluate("document.querySelector('footer button').click()"))
    assert browser.evaluate(title) == "Who are you?"


def test_a_picture_of_a_page_is_no_empty_one(
    browser: Browser, page: WebPage, tmp_path: Path
) -> None:
    browser.open(page.address + "/")
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_page_of_a_laptop_needs_no_browser_that_runs_scripts(page: WebPage) -> None:
    with urllib.request.urlopen(page.address + "/topics", timeout=30) as response:
        assert b"<script" not in response.read()
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
