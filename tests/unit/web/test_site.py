"""Each page shows what it is for, whatever it is made of, and says what is wrong when it cannot."""

import asyncio
from html.parser import HTMLParser
from http import HTTPStatus

import pytest
from tests.fakes.shown_clusters import (
    HOSTILE,
    ShownAdmin,
    ShownClusters,
    ask,
    site_of,
)

from millrace.core.errors import (
    ClusterAuthorizationFailedError,
    ConnectionFailedError,
    InvalidTopicError,
    NotLeaderError,
)
from millrace.runtime.page_messages import Request
from millrace.web.markup import visible
from millrace.web.pages.topics import TOPICS_MAX
from millrace.web.pages.transactions import SEARCHED_MAX, TRANSACTIONS_MAX
from millrace.web.site import PAGES_AT_ONCE, Site

PAGES = [
    ("/", {}),
    ("/brokers", {}),
    ("/broker", {"id": "0"}),
    ("/topics", {}),
    ("/topics", {"find": HOSTILE}),
    ("/topic", {"name": HOSTILE}),
    ("/groups", {}),
    ("/group", {"name": HOSTILE}),
    ("/transactions", {}),
    ("/transactions", {"all": "yes"}),
    ("/transaction", {"id": HOSTILE}),
    ("/transaction", {"id": "id-0"}),
    ("/quotas", {}),
    ("/records", {"topic": HOSTILE}),
]
TAGS = {
    *("html", "head", "meta", "title", "link", "body", "a", "header", "span", "nav", "ul", "li"),
    *("main", "h1", "h2", "p", "div", "code", "dl", "dt", "dd", "table", "thead", "tbody", "tr"),
    *("th", "td", "form", "label", "input", "button", "select", "option", "footer", "bdi", "pre"),
    "time",
}
VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """A page as a browser reads it."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(body.decode())
        self.close()
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "action", "src")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(("path", "query"), PAGES)
@pytest.mark.parametrize("dead", [None, 0])
def test_names_of_strangers_are_harmless_on_every_page(
    path: str, query: dict[str, str], dead: int | None
) -> None:
    response = ask(site_of(ShownAdmin(dead=dead)), path, **query)
    assert response.status is HTTPStatus.OK
    page = Page(response.body)
    assert page.tags <= TAGS
    assert not any(
        attribute.startswith("on") or attribute == "style" for attribute in page.attributes
    )
    assert all(link.startswith(("/", "#")) and link[:2] != "//" for link in page.links)
    assert "\x1b" not in page.text
    assert "\u202e" not in response.body.decode()


@pytest.mark.parametrize(
    ("path", "query", "texts"),
    [
        ("/", {}, ["Healthy: every partition is led", "broker-2", "c1"]),
        ("/brokers", {}, ["alive, controller", "Log directories", "/data/log"]),
        ("/broker", {"id": "0"}, ["node.name", "metrics.port"]),
        ("/topics", {}, [visible(HOSTILE), "topic-0"]),
        ("/topic", {"name": "topic-0"}, ["retention.ms", "Read its records"]),
        ("/groups", {}, ["group-0", "20 B", "1.0 s"]),
        ("/group", {"name": "group-0"}, ["Records behind", "uniform"]),
        ("/transactions", {}, ["1 transaction hangs", "77", "2023-11-14 22:13:20"]),
        ("/transactions", {}, [visible(HOSTILE), "4711", "id-0", "committed, not written"]),
        ("/transactions", {}, [f"{visible(HOSTILE)}-2: {visible(HOSTILE)}, and 1 other"]),
        ("/transaction", {"id": HOSTILE}, ["open", "4711", "1 m 0 s", "(deleted)", "(hidden)"]),
        ("/transaction", {"id": "id-0"}, ["committed by its time-out", "not yet"]),
        ("/quotas", {}, ["2.0 KiB", "50 %", "1.5 s"]),
        ("/records", {"topic": "topic-0"}, ["is empty; its next offset is 7"]),
    ],
)
def test_a_page_shows_what_it_is_for(path: str, query: dict[str, str], texts: list[str]) -> None:
    response = ask(site_of(ShownAdmin()), path, **query)
    assert response.status is HTTPStatus.OK
    text = Page(response.body).text
    assert [words for words in texts if words not in text] == []


def test_what_is_wrong_is_said_on_the_first_page() -> None:
    text = Page(ask(site_of(ShownAdmin(dead=1)), "/").body).text
    assert "down: broker 1" in text
    assert "2 partitions under-replicated" in text
    assert "2 of 3 up" in text
    assert "Healthy" not in text


def test_a_long_list_comes_in_parts() -> None:
    site = site_of(ShownAdmin(topics=250))
    first = Page(ask(site, "/topics").body)
    assert f"1 to {TOPICS_MAX} of 251" in first.text
    assert "/topics?first=100" in first.links
    last = Page(ask(site, "/topics", first="200", find="").body)
    assert "201 to 251 of 251" in last.text
    assert "/topics?first=100&find=" in last.links
    assert ask(site, "/topics", first="9" * 18).status is HTTPStatus.OK


def test_transactions_that_are_over_are_shown_on_request_and_the_oldest_comes_first() -> None:
    site = site_of(ShownAdmin(transactions=120))
    first = Page(ask(site, "/transactions").body)
    assert first.text.index("id-119") < first.text.index("id-118")
    assert "over" not in {link.partition("id=")[2] for link in first.links}
    assert f"1 to {TRANSACTIONS_MAX} of 121" in first.text
    assert (
        "/transaction?id=over"
        in Page(ask(site, "/transactions", all="yes", first="100").body).links
    )


def test_where_all_is_well_the_page_of_transactions_says_so() -> None:
    text = Page(ask(site_of(ShownAdmin(transactions=None)), "/transactions").body).text
    assert "No transaction hangs." in text
    assert "all that is decided is written" in text


def test_hanging_transactions_are_not_looked_for_in_a_large_cluster() -> None:
    text = Page(ask(site_of(ShownAdmin(topics=SEARCHED_MAX)), "/transactions").body).text
    assert "are too many for this page" in text
    assert "77" not in text


def test_the_logs_of_a_directory_are_counted_together() -> None:
    text = Page(ask(site_of(ShownAdmin(topics=9)), "/brokers").body).text
    assert text.count("/data/log") == 3  # One for each broker.


def test_topics_are_found_by_a_part_of_their_names() -> None:
    text = Page(ask(site_of(ShownAdmin(topics=20)), "/topics", find="PIC-1").body).text
    assert "topic-1" in text
    assert "topic-19" in text
    assert "topic-2" not in text


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/nothing", {}, HTTPStatus.NOT_FOUND),
        ("//evil.example/", {}, HTTPStatus.NOT_FOUND),
        ("/../../etc/passwd", {}, HTTPStatus.NOT_FOUND),
        ("/style.css/", {}, HTTPStatus.NOT_FOUND),
        ("/clusters/a/b/topics", {}, HTTPStatus.NOT_FOUND),
        ("/topic", {"name": "absent"}, HTTPStatus.NOT_FOUND),
        ("/group", {"name": "absent"}, HTTPStatus.NOT_FOUND),
        ("/transaction", {"id": "absent"}, HTTPStatus.NOT_FOUND),
        ("/broker", {"id": "77"}, HTTPStatus.NOT_FOUND),
        ("/broker", {}, HTTPStatus.NOT_FOUND),
        ("/broker", {"id": "x"}, HTTPStatus.BAD_REQUEST),
        ("/topics", {"first": "-1"}, HTTPStatus.BAD_REQUEST),
        ("/topics", {"first": "9" * 19}, HTTPStatus.BAD_REQUEST),
        ("/topics", {"first": "9" * 5000}, HTTPStatus.BAD_REQUEST),
        ("/topics", {"first": "²"}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "topic-0", "partition": "5"}, HTTPStatus.NOT_FOUND),
        ("/records", {"topic": "topic-0", "partition": "9" * 12}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "topic-0", "time": "soon"}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "topic-0", "time": "0001-01-01T00:00+23:59"}, HTTPStatus.OK),
        ("/records", {"topic": "topic-0", "time": "2013", "offset": "1"}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "topic-0", "key": "x", "keyform": "hex"}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "topic-0", "form": "exe"}, HTTPStatus.BAD_REQUEST),
        ("/record", {"topic": "topic-0", "offset": "1"}, HTTPStatus.NOT_FOUND),
        ("/record", {"topic": "topic-0"}, HTTPStatus.NOT_FOUND),
    ],
)
def test_what_is_not_there_is_said(path: str, query: dict[str, str], status: HTTPStatus) -> None:
    response = ask(site_of(ShownAdmin()), path, **query)
    assert response.status is status
    assert Page(response.body).text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionFailedError("no broker listens at h:1"), HTTPStatus.BAD_GATEWAY),
        (NotLeaderError("no leader"), HTTPStatus.SERVICE_UNAVAILABLE),
        (InvalidTopicError(HOSTILE), HTTPStatus.BAD_REQUEST),
    ],
)
def test_the_reason_of_brokers_is_shown(error: Exception, status: HTTPStatus) -> None:
    response = ask(site_of(ShownAdmin(refuses=error)), "/topics")  # type: ignore[arg-type]
    assert response.status is status
    assert visible(str(error.message)) in Page(response.body).text  # type: ignore[attr-defined]
    assert "Groups" in Page(response.body).text  # One can go on from there.


def test_only_some_pages_are_made_at_a_time() -> None:
    admin = ShownAdmin()

    async def ask_often() -> None:
        site = site_of(admin)
        request = Request("GET", "/quotas", {})
        answers = await asyncio.gather(*(site.respond(request) for _ in range(200)))
        assert {answer.status for answer in answers} == {HTTPStatus.OK}

    asyncio.run(ask_often())
    assert admin.asked_at_once <= PAGES_AT_ONCE


def test_brokers_that_do_not_answer_are_not_waited_for() -> None:
    site = site_of(ShownAdmin(hangs=True), page_s_max=0.1)
    response = ask(site, "/topics")
    assert response.status is HTTPStatus.GATEWAY_TIMEOUT
    assert "the brokers did not answer in 0.1 s" in Page(response.body).text


def test_a_request_that_gets_no_turn_is_told_so_and_records_have_turns_of_their_own() -> None:
    async def ask_often() -> list[HTTPStatus]:
        site = site_of(ShownAdmin(hangs=True), page_s_max=0.5)
        requests = [Request("GET", "/topics", {})] * (PAGES_AT_ONCE + 1)
        requests.append(Request("GET", "/records", {"topic": "topic-0"}))
        return [answer.status for answer in await asyncio.gather(*map(site.respond, requests))]

    *pages, late, records = asyncio.run(ask_often())
    assert set(pages) == {HTTPStatus.GATEWAY_TIMEOUT}
    assert late is HTTPStatus.SERVICE_UNAVAILABLE
    assert records is HTTPStatus.GATEWAY_TIMEOUT


def test_clusters_of_kubernetes_are_listed_and_have_pages_of_their_own() -> None:
    site = site_of(ShownAdmin(), "shop/logs", "a/b")
    first = Page(ask(site, "/").body)
    assert "/clusters/shop/logs" in first.links
    page = Page(ask(site, "/clusters/shop/logs").body)
    assert "shop/logs" in page.text
    assert {"/clusters/shop/logs/topics", "/clusters/shop/logs"} <= set(page.links)
    topics = Page(ask(site, "/clusters/shop/logs/topics").body)
    assert "/clusters/shop/logs/topic?name=topic-0" in topics.links
    assert ask(site, "/clusters/shop/logs/").status is HTTPStatus.OK
    assert ask(site, "/topics").status is HTTPStatus.NOT_FOUND
    assert ask(site, "/clusters/shop/other").status is HTTPStatus.NOT_FOUND


def test_without_any_cluster_the_page_says_so() -> None:
    assert "There is no Cluster yet" in Page(ask(Site(ShownClusters({})), "/").body).text


@pytest.mark.parametrize("path", ["/", "/brokers", "/broker", "/topics"])
def test_what_a_token_may_not_see_is_left_out_of_a_page_that_has_more_to_show(path: str) -> None:
    admin = ShownAdmin(withheld=ClusterAuthorizationFailedError("not for you"))
    response = ask(site_of(admin), path, id="0")
    assert response.status is HTTPStatus.OK
    text = Page(response.body).text
    assert "broker-0" in text or "topic-0" in text
    assert ("only for those who may describe the cluster" in text) == (path != "/topics")


def test_what_a_token_may_not_see_at_all_is_refused_by_name() -> None:
    refusal = ClusterAuthorizationFailedError("reports may not describe the cluster")
    response = ask(site_of(ShownAdmin(withheld=refusal)), "/quotas")
    assert response.status is HTTPStatus.FORBIDDEN
    page = Page(response.body)
    assert "reports may not describe the cluster" in page.text
    assert "/token" in page.links


def test_a_page_is_loaded_again_if_its_reader_wants_that() -> None:
    site = site_of(ShownAdmin())
    once = ask(site, "/groups").body
    assert b"http-equiv" not in once
    assert "/groups?refresh=5" in Page(once).links
    again = ask(site, "/groups", refresh="5").body
    assert b'<meta http-equiv="refresh" content="5">' in again
    assert b"http-equiv" not in ask(site, "/groups", refresh="0").body


@pytest.mark.parametrize("name", ["path", "self", "text", "tag", "changes", "query"])
@pytest.mark.parametrize("path", ["/", "/topics", "/records"])
def test_a_value_of_the_address_may_have_any_name(path: str, name: str) -> None:
    query = {"topic": "topic-0", name: "x"}
    response = ask(site_of(ShownAdmin(topics=250)), path, **query)
    assert response.status is HTTPStatus.OK
    assert any(f"{name}=x" in link and "refresh=5" in link for link in Page(response.body).links)


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/topics", "/nothing"])
def test_a_page_that_is_not_there_leads_nowhere_else(path: str) -> None:
    response = ask(site_of(ShownAdmin()), path, refresh="5")
    assert response.status is HTTPStatus.NOT_FOUND
    links = Page(response.body).links
    assert "/topics" in links
    assert b"http-equiv" not in response.body
    assert not [link for link in links if link.startswith("//") or "nothing" in link]


@pytest.mark.parametrize(
    ("path", "kind"), [("/style.css", "text/css"), ("/icon.svg", "image/svg+xml")]
)
def test_a_file_says_what_it_is(path: str, kind: str) -> None:
    response = ask(site_of(ShownAdmin()), path)
    assert response.status is HTTPStatus.OK
    assert response.content_type.startswith(kind)
