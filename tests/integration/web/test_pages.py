"""The web page of real brokers, over real HTTP."""

import http.client
import socket
import time
from http import HTTPStatus
from urllib.parse import urlencode

import pytest
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster
from tests.integration.web.conftest import LARGE, ODD, ORDERS, PAYMENTS, WebPage

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.client.producer.murmur2 import partition_of
from millrace.runtime.page_server import HEAD_S_MAX
from millrace.web.site import PAGE_S_MAX
from millrace.web.values import CHARACTERS_MAX, WRITTEN_MAX

KEY = b"customer-3"


def get(page: WebPage, path: str, **query: object) -> tuple[int, str]:
    """Return status and body of a page."""
    return ask(page, "GET", path, **query)


def ask(page: WebPage, method: str, path: str, **query: object) -> tuple[int, str]:
    """Return status and body of the answer to a request."""
    address = f"{path}?{urlencode(query)}" if query else path
    connection = http.client.HTTPConnection("localhost", page.port, timeout=60)
    try:
        connection.request(method, address)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def shown(page: WebPage, path: str, **query: object) -> str:
    """Return a page that has to be there."""
    status, body = get(page, path, **query)
    assert status == HTTPStatus.OK, body
    return body


@pytest.mark.parametrize(
    ("path", "query", "texts"),
    [
        ("/", {}, ["Healthy", "broker-2", "3 of 3 up"]),
        ("/brokers", {}, ["Log directories", "broker-0"]),
        ("/broker", {"id": 1}, ["limits.message_bytes_max", "16777216"]),
        ("/topics", {}, ["shop/orders", "odd", f">{ORDERS}<"]),
        ("/topics", {"internal": "yes"}, ["__positions"]),
        ("/topic", {"name": "shop/orders"}, ["retention.ms", "min.insync.replicas", "customer"]),
        ("/groups", {}, ["billing", "consumer"]),
        ("/group", {"name": "billing"}, ["shop/orders", "Records behind"]),
        ("/transactions", {}, ["No transaction hangs", "all that is decided is written"]),
        ("/transactions", {"all": "yes"}, ["shop/checkout", "committed"]),
        ("/transaction", {"id": "shop/checkout"}, ["committed by its producer", "1 m 0 s"]),
        (
            "/transaction",
            {"id": "shop/etl@payments"},
            ["committed by its application", "run 1", "billing query", "s3:checkpoints", "Lease"],
        ),
        ("/quotas", {}, ["reports", "9.5 MiB", "client id report"]),
    ],
)
def test_a_page_shows_what_brokers_say(
    page: WebPage, path: str, query: dict[str, object], texts: list[str]
) -> None:
    if path == "/topic":
        texts = texts[:-1]  # Records are on a page of their own.
        assert "customer-" not in shown(page, path, **query)

    def lacking() -> list[str]:
        status, body = get(page, path, **query)
        return [text for text in texts if status != HTTPStatus.OK or text not in body]

    # Replicas come into sync, and ends of transactions are written, a little later.
    wait_until(lambda: not lacking(), f"{texts} are shown", 30)


def test_an_open_transaction_is_shown_with_its_partition_until_it_ends(
    cluster: RunningCluster, page: WebPage
) -> None:
    with SyncProducer(cluster.bootstrap, transactional_id="shop/refunds") as producer:
        producer.begin_transaction()
        producer.send(PAYMENTS, b"back")
        producer.flush()
        assert "shop/refunds" in shown(page, "/transactions")
        assert PAYMENTS in shown(page, "/transaction", id="shop/refunds")
        producer.abort_transaction()
    wait_until(lambda: "shop/refunds" not in shown(page, "/transactions"), "it is over")


def test_the_newest_records_of_a_partition_come_first_and_lead_to_all_others(
    page: WebPage,
) -> None:
    partition = partition_of(KEY, 3)
    body = shown(page, "/records", topic="shop/orders", partition=partition)
    assert "customer-" in body
    assert "2023-11-14 22:1" in body
    first = shown(page, "/records", topic="shop/orders", partition=partition, offset=0)
    assert f"partition={partition}&amp;offset=0" in first


def test_records_are_found_by_time(page: WebPage) -> None:
    body = shown(page, "/records", topic="shop/orders", partition=0, time="2023-11-14T22:14:20")
    later = [
        number
        for number in range(60, ORDERS)
        if partition_of(b"customer-%d" % (number % 7), 3) == 0
    ]
    assert f"&quot;id&quot;: {later[0]}," in body
    assert "&quot;id&quot;: 0," not in body
    after = shown(page, "/records", topic="shop/orders", partition=0, time="2099-01-01")
    assert "not written yet" in after


def test_records_are_found_by_key_in_the_partition_of_the_key(page: WebPage) -> None:
    body = shown(page, "/records", topic="shop/orders", key=KEY.decode())
    wanted = len(range(3, ORDERS, 7))
    assert f": {wanted} with this key." in body
    assert body.count("customer-3</bdi>") == wanted
    assert "customer-2" not in body
    as_hex = shown(page, "/records", topic="shop/orders", key=KEY.hex(), keyform="hex")
    assert f": {wanted} with this key." in as_hex
    elsewhere = (partition_of(KEY, 3) + 1) % 3
    none = shown(page, "/records", topic="shop/orders", key="customer-3", partition=elsewhere)
    assert ": 0 with this key." in none


def test_a_record_is_shown_as_json_text_or_bytes(page: WebPage) -> None:
    at: dict[str, object] = {"topic": "shop/orders", "partition": 0, "offset": 0}
    body = shown(page, "/record", **at)
    assert "{\n  &quot;id&quot;: " in body
    assert "as json" in body
    assert "{&quot;id&quot;: " in shown(page, "/record", **at, form="text")
    assert "00000000  7b 22 69 64" in shown(page, "/record", **at, form="hex")


def test_hostile_records_are_text_and_no_more(page: WebPage) -> None:
    bodies = [shown(page, "/records", topic="odd", offset=0)]
    bodies += [shown(page, "/record", topic="odd", offset=offset) for offset in range(len(ODD))]
    for body in bodies:
        assert "<script" not in body
        assert "<img" not in body
        assert "<b>" not in body
        assert "<i>" not in body
        assert not set("\x00\x07\x1b\u202e") & set(body)
        assert len(body) < CHARACTERS_MAX
    assert "\\x1b</span>[31mred" in bodies[3]
    assert "\\u{202e}</span>gnp.exe" in bodies[4]
    assert "ff fe 00 01" in bodies[5]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_record_of_characters_that_are_not_seen_makes_no_huge_page(
    page: WebPage, form: str
) -> None:
    body = shown(page, "/record", topic="hidden", offset=0, form=form)
    assert body.count("Only the beginning is shown") == 2
    assert body.count("\\u{202e}</span>…") == 200  # Of each header the name and the value.
    assert len(body) < 2 * WRITTEN_MAX + 300_000
    listed = shown(page, "/records", topic="hidden", form=form)
    assert len(listed) < 20_000


def test_a_value_of_10_mb_is_shown_by_its_begin_and_its_size(page: WebPage) -> None:
    body = shown(page, "/record", topic="odd", offset=ODD.index(b"x" * LARGE))
    assert "Only the beginning is shown: it has 9.5 MiB." in body
    assert "x" * 60_000 in body
    assert len(body) < 100_000


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/topic", {"name": "absent"}, HTTPStatus.NOT_FOUND),
        ("/topic", {"name": "no such name!"}, HTTPStatus.BAD_REQUEST),
        ("/topic", {}, HTTPStatus.BAD_REQUEST),
        ("/group", {"name": "absent"}, HTTPStatus.NOT_FOUND),
        ("/records", {"topic": "shop/orders", "partition": 3}, HTTPStatus.NOT_FOUND),
        ("/records", {"topic": "shop/orders", "offset": 10**18}, HTTPStatus.OK),
        ("/records", {"topic": "shop/orders", "offset": -1}, HTTPStatus.BAD_REQUEST),
        ("/records", {"topic": "shop/orders", "time": "9999-12-31"}, HTTPStatus.OK),
        ("/records", {"topic": "shop/orders", "time": "0001-01-01"}, HTTPStatus.OK),
        ("/record", {"topic": "shop/orders", "offset": 10**18}, HTTPStatus.NOT_FOUND),
        ("/records", {"topic": "shop/orders", "key": "\x00\ud7ff" * 100}, HTTPStatus.OK),
        ("/topics", {"find": "x" * 100}, HTTPStatus.OK),
        ("/topics", {"find": "x" * 20_000}, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_what_is_asked_wrongly_is_answered(
    page: WebPage, path: str, query: dict[str, object], status: HTTPStatus
) -> None:
    found, body = get(page, path, **query)
    assert found == status, body
    assert "by a mistake of its own" not in body


def test_only_this_machine_under_its_own_names_is_served(page: WebPage) -> None:
    assert ask(page, "POST", "/")[0] == HTTPStatus.METHOD_NOT_ALLOWED
    assert ask(page, "HEAD", "/") == (HTTPStatus.OK, "")
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", "/", headers={"Host": f"evil.example:{page.port}"})
    response = connection.getresponse()
    assert response.status == HTTPStatus.MISDIRECTED_REQUEST
    assert b"broker-0" not in response.read()
    connection.close()


@pytest.mark.nightly
def test_a_request_that_comes_too_slowly_is_ended(page: WebPage) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as slow:
        slow.settimeout(1)
        slow.send(b"GET / HTTP/1.1\r\n")
        begun = time.monotonic()
        answer = b""
        while not answer.endswith(b"</html>\n"):
            assert time.monotonic() - begun < 3 * HEAD_S_MAX
            try:
                read = slow.recv(1 << 16)
                assert read, answer
                answer += read
            except TimeoutError:
                slow.send(b"X: y\r\n")  # It never ends.
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_paused_broker_is_shown_as_unreachable_in_time(
    cluster: RunningCluster, page: WebPage
) -> None:
    def is_told() -> bool:
        body = shown(page, "/")
        return "unreachable: broker 2" in body or "down: broker 2" in body

    with cluster[2].paused():
        begun = time.monotonic()
        shown(page, "/")
        assert time.monotonic() - begun < PAGE_S_MAX
        # On a busy machine another one may be late, too, and be named with it.
        wait_until(is_told, "it is shown", 30)
    wait_until(lambda: "Healthy" in shown(page, "/"), "the broker is back", 60)


def test_an_offset_that_compaction_has_taken_leads_to_the_next_one(
    cluster: RunningCluster, page: WebPage
) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0"}
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("latest", 1, 3, config)

        def is_compacted() -> bool:
            producer.send("latest", b"the same key again", key=b"k").result(30)
            return "compaction has removed it" in get(page, "/record", topic="latest", offset=0)[1]

        wait_until(is_compacted, "the log is compacted", 60)
    status, body = get(page, "/record", topic="latest", offset=0)
    assert status == HTTPStatus.NOT_FOUND
    assert "The next one is " in body
    assert "the same key again" in shown(page, "/records", topic="latest", offset=0)


def test_a_dead_broker_is_shown_and_the_page_goes_on(
    cluster: RunningCluster, page: WebPage
) -> None:
    cluster[1].kill()
    try:
        wait_until(lambda: "down: broker 1" in shown(page, "/"), "the dead broker", 60)
        # Any broker may answer, also one that has yet to hear of it.
        fenced = '<span class="state bad">fenced</span>'
        wait_until(lambda: fenced in shown(page, "/brokers"), "it is fenced")

        def are_shown() -> bool:
            status, body = get(page, "/records", topic="shop/orders", key="customer-3")
            return status == HTTPStatus.OK and "customer-3</bdi>" in body

        wait_until(are_shown, "the records of the brokers that are left", 30)
    finally:
        cluster[1].start()
    wait_until(lambda: "Healthy" in shown(page, "/"), "the broker is back", 60)


@pytest.mark.nightly
def test_without_any_broker_the_page_says_so_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        page = WebPage(f"127.0.0.1:{port}")
        try:
            for path in ("/", "/topics", "/groups", "/quotas"):
                status, body = get(page, path)
                assert status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT), body
                assert "No answer from the brokers" in body
        finally:
            page.close()


def test_a_topic_without_records_says_so(cluster: RunningCluster, page: WebPage) -> None:
    cluster.create_topic("empty", 1, 3)
    assert "Partition 0 is empty; its next offset is 0." in shown(page, "/records", topic="empty")
