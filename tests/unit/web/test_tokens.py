"""A visitor gives a token, which the brokers judge, and the page keeps it where nobody sees it."""

import asyncio
import base64
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast

import pytest
from tests.fakes.shown_clusters import ShownAdmin, ShownClusters
from tests.unit.web.test_site import Page

from millrace.client import Admin
from millrace.core.errors import AuthenticationFailedError
from millrace.runtime.page_messages import Request, Response
from millrace.web.clients import Clients
from millrace.web.clusters import Place
from millrace.web.site import Site

GOOD, BAD = "mlr_good_" + "x" * 30, "mlr_bad_" + "x" * 30
REFUSAL = "this broker does not accept the token"
HOST = {"host": "localhost:7098"}
AUDIENCE = "logs.shop.millrace.dev"


class Guarded:
    """Brokers that accept one token, with the site that shows them.

    Args:
        places: by name.
        accepted: the token.
    """

    def __init__(self, places: Mapping[str, Place] | None = None, accepted: str = GOOD) -> None:
        self.accepted = accepted
        self.asked: list[str] = []
        clients = Clients(self._connect)
        self.site = Site(
            ShownClusters({"": Place("h:1")} if places is None else places),
            clients,
        )

    def _connect(self, place: Place, token: str) -> Admin:
        self.asked.append(token)
        refusal = None if token == self.accepted else AuthenticationFailedError(REFUSAL)
        return cast(Admin, ShownAdmin(refuses=refusal))

    def get(self, path: str, cookie: str = "", **fields: str) -> Response:
        said = HOST | fields | ({"cookie": cookie} if cookie else {})
        return asyncio.run(self.site.respond(Request("GET", path, {}, said)))

    def post(self, path: str = "/token", cookie: str = "", **form: str) -> Response:
        said = HOST | ({"cookie": cookie} if cookie else {})
        request = Request("POST", path, {}, said, form=form)
        return asyncio.run(self.site.respond(request))


def cookie_of(response: Response) -> str:
    return response.fields["Set-Cookie"].partition(";")[0]


def jwt(audience: object) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return ".".join([part({"alg": "RS256", "kid": "k"}), part({"aud": audience}), "c2ln"])


def test_who_has_no_token_is_asked_for_one_and_comes_back_to_the_page() -> None:
    response = Guarded().get("/topics")
    assert response.status is HTTPStatus.UNAUTHORIZED
    assert response.fields["WWW-Authenticate"] == "Bearer"
    page = Page(response.body)
    assert "The brokers ask for a token" in page.text
    assert "/token" in page.links
    assert b'method="post"' in response.body
    assert b'name="to" value="/topics"' in response.body
    assert b'type="password"' in response.body


def test_a_token_that_brokers_accept_shows_what_it_may_see_until_it_is_forgotten() -> None:
    guarded = Guarded()
    given = guarded.post(token=f" {GOOD}\n", to="/topics?first=0")
    assert given.status is HTTPStatus.SEE_OTHER
    assert given.fields["Location"] == "/topics?first=0"
    kept = given.fields["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(kept.split("; "))
    assert GOOD not in kept + str(given.fields)
    shown = guarded.get("/topics", cookie_of(given))
    assert shown.status is HTTPStatus.OK
    assert "topic-0" in Page(shown.body).text
    assert "Forget my token" in Page(shown.body).text
    assert GOOD.encode() not in shown.body
    assert guarded.get("/topics").status is HTTPStatus.UNAUTHORIZED
    left = guarded.post(cookie=cookie_of(given), forget="yes")
    assert left.status is HTTPStatus.SEE_OTHER
    assert guarded.get("/topics", cookie_of(given)).status is HTTPStatus.UNAUTHORIZED


def test_the_refusal_of_brokers_is_shown_and_nothing_is_kept() -> None:
    guarded = Guarded()
    refused = guarded.post(token=BAD, to="/topics")
    assert refused.status is HTTPStatus.UNAUTHORIZED
    assert REFUSAL in Page(refused.body).text
    assert "Set-Cookie" not in refused.fields
    assert BAD.encode() not in refused.body
    assert len(guarded.site._sessions) == 0


def test_a_token_that_was_taken_back_is_asked_for_again() -> None:
    guarded = Guarded()
    cookie = cookie_of(guarded.post(token=GOOD))
    guarded.accepted = "another"
    guarded.site._clients = Clients(guarded._connect)
    response = guarded.get("/topics", cookie)
    assert response.status is HTTPStatus.UNAUTHORIZED
    assert REFUSAL in Page(response.body).text
    assert len(guarded.site._sessions) == 0


@pytest.mark.parametrize("token", ["", "short", "two words and more than sixteen", "é" * 20])
def test_what_is_no_token_is_not_sent(token: str) -> None:
    guarded = Guarded()
    response = guarded.post(token=token)
    assert response.status is HTTPStatus.BAD_REQUEST
    assert "a token is one word" in Page(response.body).text
    assert set(guarded.asked) <= {""}


@pytest.mark.parametrize(
    "to", ["", "//evil.example/", "/\\evil.example", "https://evil.example", "/a\r\nX: y", "/ä"]
)
def test_after_a_token_was_given_a_page_of_this_site_follows(to: str) -> None:
    assert Guarded().post(token=GOOD, to=to).fields["Location"] == "/"


def test_programs_send_a_token_with_each_request() -> None:
    guarded = Guarded()
    assert guarded.get("/topics", authorization=f"Bearer {GOOD}").status is HTTPStatus.OK
    assert guarded.get("/topics", authorization=f"bearer {BAD}").status is HTTPStatus.UNAUTHORIZED
    assert guarded.get("/topics", authorization="Basic eDp5").status is HTTPStatus.BAD_REQUEST
    assert len(guarded.site._sessions) == 0


def test_a_token_is_for_the_cluster_that_it_was_given_for() -> None:
    names = ("shop/logs", "shop/other")
    guarded = Guarded({name: Place("h:1") for name in names})
    given = guarded.post("/clusters/shop/logs/token", token=GOOD)
    assert given.fields["Location"] == "/clusters/shop/logs"
    cookie = cookie_of(given)
    assert guarded.get("/clusters/shop/logs/topics", cookie).status is HTTPStatus.OK
    assert guarded.get("/clusters/shop/other/topics", cookie).status is HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    "token",
    [
        GOOD,
        jwt("other.shop.millrace.dev"),
        jwt([AUDIENCE, "other.shop.millrace.dev"]),
        jwt(["https://kubernetes.default.svc"]),
    ],
)
def test_a_token_of_another_cluster_is_not_sent_to_a_cluster_that_could_use_it_there(
    token: str,
) -> None:
    guarded = Guarded({"shop/logs": Place("h:1", audience=AUDIENCE)}, token)
    response = guarded.post("/clusters/shop/logs/token", token=token)
    assert response.status is HTTPStatus.BAD_REQUEST
    assert set(guarded.asked) <= {""}
    assert "--audience logs.shop.millrace.dev" in Page(response.body).text


def test_a_token_of_the_cluster_is_sent_there() -> None:
    token = jwt([AUDIENCE])
    guarded = Guarded({"shop/logs": Place("h:1", audience=AUDIENCE)}, token)
    given = guarded.post("/clusters/shop/logs/token", token=token)
    assert given.status is HTTPStatus.SEE_OTHER


def test_a_cluster_whose_authorities_are_not_known_is_not_asked() -> None:
    guarded = Guarded({"a/b": Place("h:1", problem="its status does not say yet")})
    response = guarded.get("/clusters/a/b")
    assert response.status is HTTPStatus.BAD_GATEWAY
    assert "its status does not say yet" in Page(response.body).text
    assert guarded.asked == []
