"""The page of guarded brokers: each visitor sees what the own token may see, and nothing else."""

import http.client
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.integration.guarded import GuardedBroker, token_of
from tests.integration.running_broker import wait_until
from tests.integration.web.conftest import WebPage

from millrace.client import Position, SyncAdmin, SyncProducer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    running = GuardedBroker(tmp_path_factory.mktemp("guarded"))
    try:
        running.start()
        root = str(running.token_file("root"))
        with SyncAdmin(running.address, token_file=root) as admin:
            for topic in ("team/orders", "other/secret"):
                admin.create_topic(topic)
            with SyncProducer(running.address, token_file=root) as producer:
                producer.send("team/orders", b"an order").result(20)
            admin.commit_positions("team/billing", {("team/orders", 0): Position(1)})
        yield running
    finally:
        running.abandon()


@pytest.fixture(scope="module")
def page(broker: GuardedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPage]:
    # A token in the environment of its process, as of who started it, is nobody's on the page.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MILLRACE_TOKEN_FILE", str(broker.token_file("root")))
        page = WebPage(broker.address, log=tmp_path_factory.mktemp("page") / "log")
    try:
        yield page
    finally:
        page.close()


class Visitor:
    """A browser, as far as the page needs one."""

    def __init__(self, page: WebPage) -> None:
        self._page = page
        self.cookie = ""

    def ask(self, method: str, path: str, body: str = "", **fields: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost", self._page.port, timeout=60)
        try:
            said = {name.replace("_", "-"): value for name, value in fields.items()}
            if self.cookie:
                said["Cookie"] = self.cookie
            connection.request(method, path, body or None, said)
            answer = connection.getresponse()
            if set_cookie := answer.getheader("Set-Cookie"):
                self.cookie = set_cookie.partition(";")[0]
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        return self.ask("GET", path)

    def send(self, site: str = "same-origin", **form: str) -> tuple[int, str]:
        kind = "application/x-www-form-urlencoded"
        return self.ask("POST", "/token", urlencode(form), Content_Type=kind, Sec_Fetch_Site=site)

    def enter(self, name: str) -> "Visitor":
        assert self.send(token=token_of(name), to="/")[0] == HTTPStatus.SEE_OTHER
        return self


def test_a_stranger_sees_nothing_and_is_asked_for_a_token(page: WebPage) -> None:
    for path in ("/", "/brokers", "/topics", "/records?topic=team/orders", "/groups"):
        status, body = Visitor(page).get(path)
        assert status == HTTPStatus.UNAUTHORIZED
        assert "The brokers ask for a token" in body
        assert "an order" not in body
        assert "other/secret" not in body


def test_each_visitor_sees_what_the_own_token_may_see(page: WebPage) -> None:
    consumer, describer = Visitor(page).enter("consumer"), Visitor(page).enter("describer")
    for visitor in (consumer, describer):
        status, body = visitor.get("/topics")
        assert status == HTTPStatus.OK
        assert "team/orders" in body
        assert "other/secret" not in body
        status, body = visitor.get("/")
        assert status == HTTPStatus.OK
        assert "only for those who may describe the cluster" in body
        assert "unreachable" not in body
        status, body = visitor.get("/groups")
        assert status == HTTPStatus.OK
        assert "team/billing" in body
        assert visitor.get("/topic?name=team/orders")[0] == HTTPStatus.OK
        status, body = visitor.get("/topic?name=other/secret")
        assert status == HTTPStatus.FORBIDDEN
        assert "other/secret" in body
    assert "an order" in consumer.get("/records?topic=team/orders")[1]
    status, body = describer.get("/records?topic=team/orders")
    assert status == HTTPStatus.FORBIDDEN
    assert "consume" in body
    status, body = Visitor(page).enter("administrator").get("/")
    assert status == HTTPStatus.OK
    assert "only for those who may describe the cluster and all topics" in body
    assert "Healthy" not in body
    root = Visitor(page).enter("root")
    wait_until(lambda: "Healthy" in root.get("/")[1], "root sees whether all is well")


def test_a_wrong_token_is_refused_by_the_brokers_and_their_words_are_shown(page: WebPage) -> None:
    visitor = Visitor(page)
    status, body = visitor.send(token="mlr_nobody_of_that_name_is_known")
    assert status == HTTPStatus.UNAUTHORIZED
    assert "this broker does not accept the token" in body
    assert visitor.cookie == ""


def test_another_site_cannot_give_a_visitor_a_token_nor_take_it(page: WebPage) -> None:
    visitor = Visitor(page)
    for site in ("cross-site", "same-site", "none"):
        status, _ = visitor.send(site, token=token_of("administrator"))
        assert status == HTTPStatus.FORBIDDEN
    visitor.enter("consumer")
    assert visitor.send("cross-site", forget="yes")[0] == HTTPStatus.FORBIDDEN
    assert visitor.get("/topics")[0] == HTTPStatus.OK


def test_who_leaves_is_a_stranger_again(page: WebPage) -> None:
    visitor = Visitor(page).enter("consumer")
    cookie = visitor.cookie
    assert visitor.send(forget="yes")[0] == HTTPStatus.SEE_OTHER
    visitor.cookie = cookie
    assert visitor.get("/topics")[0] == HTTPStatus.UNAUTHORIZED


def test_a_program_sends_its_token_with_the_request(page: WebPage) -> None:
    said = f"Bearer {token_of('consumer')}"
    status, body = Visitor(page).ask("GET", "/topics", Authorization=said)
    assert status == HTTPStatus.OK
    assert "team/orders" in body


def test_a_token_that_is_taken_back_shows_nothing_more(
    broker: GuardedBroker, page: WebPage
) -> None:
    visitor = Visitor(page).enter("producer")
    assert visitor.get("/topics")[0] == HTTPStatus.OK
    broker.write_tokens(dict.fromkeys(("consumer", "describer", "administrator", "root")))
    wait_until(lambda: visitor.get("/topics")[0] == HTTPStatus.UNAUTHORIZED, "it is asked again")


def test_no_token_is_in_a_log(broker: GuardedBroker, page: WebPage) -> None:
    Visitor(page).enter("consumer").get("/nothing?token=x")
    Visitor(page).send(token="mlr_one_that_is_refused")
    said = page.log_text() + Path(broker.log_path).read_text()
    assert re.search(r"mlr_\w{4}", said) is None
