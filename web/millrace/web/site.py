"""The site: which page answers which address, and what is said when it cannot.

Only some pages are made at a time, and each has to be ready in some seconds: a broker that does not
answer, or a thousand browsers, hold up nothing for longer.

Brokers are called in the name of the visitor, never of the page: by the token that the visitor's
session has, or that comes with the request, or by none.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from millrace.client import AccessDeniedError, AuthenticationFailedError, MillraceError
from millrace.core.errors import (
    ConnectionFailedError,
    CreditTooSmallError,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from millrace.core.words import size
from millrace.runtime.page_messages import OwnHosts, RefusedError, Request, Response
from millrace.web import events
from millrace.web.clients import Clients
from millrace.web.clusters import Clusters, Place
from millrace.web.markup import Child, element, link
from millrace.web.pages import (
    brokers,
    cluster,
    groups,
    quotas,
    records,
    tokens,
    topics,
    transactions,
)
from millrace.web.pages.layout import TOKEN_PATH, Page, Visit, table, write
from millrace.web.reading import BATCH_BYTES_MAX
from millrace.web.sessions import Sessions, cookie, shown_word

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""Connections at a time; browsers open several, also in advance."""
PAGES_AT_ONCE: Final = 8
"""Pages that are made at a time; further requests wait for their turn."""
READS_AT_ONCE: Final = 2
"""Pages with records that are made beside them: each may hold a batch of the largest size."""
PAGE_S_MAX: Final = 15.0
"""How long a request may take, with its turn."""

_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[Page]]]] = {
    "/": cluster.page,
    "/brokers": brokers.page,
    "/broker": brokers.broker,
    "/topics": topics.page,
    "/topic": topics.topic,
    "/groups": groups.page,
    "/group": groups.group,
    "/transactions": transactions.page,
    "/transaction": transactions.transaction,
    "/quotas": quotas.page,
    "/records": records.page,
    "/record": records.record,
}
_WITH_RECORDS: Final = ("/records", "/record")
_FILES: Final = {"/style.css": "text/css; charset=utf-8", "/icon.svg": "image/svg+xml"}
_CLUSTERS: Final = "clusters"
_NOBODY: Final = "The brokers ask for a token; the page shows what it may see."
_OWN_ADDRESS: Final = re.compile(r"/(?![/\\])[!-~]*", re.ASCII)
"""Of a page of this site: browsers take what begins with two strokes for another one."""
_HOSTS: Final = OwnHosts(
    {"localhost", "127.0.0.1", "[::1]"}.__contains__,
    "this page is for this machine alone: open it as http://localhost, with its port",
)


class Site:
    """The pages of clusters; implements `Pages` of the server. Used on one event loop.

    Args:
        clients: with which brokers are asked; `close` closes them.
        page_s_max: how long a request may take.
    """

    hosts = _HOSTS

    def __init__(
        self,
        clusters: Clusters,
        clients: Clients | None = None,
        page_s_max: float = PAGE_S_MAX,
    ) -> None:
        self._clusters, self._page_s_max = clusters, page_s_max
        self._clients = Clients() if clients is None else clients
        self._sessions = Sessions()
        self._room = asyncio.Semaphore(PAGES_AT_ONCE)
        self._room_to_read = asyncio.Semaphore(READS_AT_ONCE)
        self._files = {
            path: files("millrace.web").joinpath(path[1:]).read_bytes() for path in _FILES
        }

    def takes_form(self, path: str) -> bool:
        """Return whether a path takes a form: that with a token, of each cluster."""
        return _split(path)[1] == TOKEN_PATH

    async def close(self) -> None:
        """Close the clients."""
        await self._clients.close()

    async def respond(self, request: Request) -> Response:
        """Return the response to a request; never raises because of what it asks for."""
        if request.path in self._files:
            return Response(self._files[request.path], content_type=_FILES[request.path])
        asked = _Asked(request, *_split(request.path))
        room = self._room_to_read if asked.path in _WITH_RECORDS else self._room
        try:
            async with asyncio.timeout(self._page_s_max), self._turn(room):
                asked.is_begun = True
                return await self._answer(asked)
        except RefusedError as error:
            return _refusal(error, asked.visit)
        except TimeoutError:
            if not asked.is_begun:
                why = (
                    f"this page had no turn in {self._page_s_max / 2:g} s, as many are asked for: "
                    "try again"
                )
                return _refusal(RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, why), asked.visit)
            why = f"the brokers did not answer in {self._page_s_max:g} s: try again"
            return _refusal(RefusedError(HTTPStatus.GATEWAY_TIMEOUT, why), asked.visit)
        except CreditTooSmallError:
            why = (
                f"a batch is larger than {size(BATCH_BYTES_MAX)}, which this page does not read; "
                "`millrace consume` does"
            )
            return _refusal(RefusedError(HTTPStatus.INSUFFICIENT_STORAGE, why), asked.visit)
        except MillraceError as error:
            return _refusal(RefusedError(_status_of(error), error.message), asked.visit)
        except Exception as error:
            events.PAGE_FAILED.log(_log, path=request.path, cause=error)
            why = "the page has failed by a mistake of its own; the log of its process says more"
            # Without the visit: what failed may be the frame that is made of it.
            return _refusal(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, why))

    async def _answer(self, asked: "_Asked") -> Response:
        """Return the page that is asked for, as its visitor may see it.

        Raises:
            RefusedError: there is none.
            MillraceError: of the brokers.
        """
        known = await self._clusters.all()
        request, name, path = asked.request, asked.name, asked.path
        if path == "/" and not name and "" not in known:
            return _response(_list(sorted(known)), None)
        if name not in known:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}")
        place = known[name]
        if place.problem:
            raise RefusedError(HTTPStatus.BAD_GATEWAY, place.problem)
        if request.method == "POST":
            return await self._take_form(asked, place)
        bearer, word = tokens.bearer(request, place), shown_word(request)
        kept = "" if bearer else self._sessions.token(word, name)
        async with self._clients.of(name, place, bearer or kept) as cluster:
            if path == TOKEN_PATH:
                asked.visit = Visit(cluster, "", has_session=bool(kept))
                return _response(tokens.page(asked.visit, asked.visit.address("/")), asked.visit)
            if path not in _PAGES:
                asked.visit = Visit(cluster, "", has_session=bool(kept))
                raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no page {path!r}")
            asked.visit = visit = Visit(cluster, path, request.query, bool(kept))
            try:
                return _response(await _PAGES[path](visit), visit)
            except AuthenticationFailedError as error:
                if kept:
                    self._sessions.forget(word, name)
                why = error.message if bearer or kept else _NOBODY
                visit = replace(visit, has_session=False)
                page = tokens.page(visit, visit.again(), why, HTTPStatus.UNAUTHORIZED)
                return _response(page, visit)

    async def _take_form(self, asked: "_Asked", place: Place) -> Response:
        """Keep the token that brokers accept, or forget the one that was kept.

        Raises:
            MillraceError: the brokers do not answer.
        """
        request, name = asked.request, asked.name
        word = shown_word(request)
        async with self._clients.of(name, place, "") as nobody:
            asked.visit = visit = Visit(nobody, "")
        if "forget" in request.form:
            self._sessions.forget(word, name)
            return _redirection(visit.address("/"))
        to = request.form.get("to", "")
        if not _OWN_ADDRESS.fullmatch(to):
            to = visit.address("/")
        try:
            token = tokens.checked(request.form.get("token", ""), place)
            async with self._clients.of(name, place, token) as cluster:
                await cluster.admin.list_topics()
        except RefusedError as error:
            return _response(tokens.page(visit, to, error.why, error.status), visit)
        except AuthenticationFailedError as error:
            page = tokens.page(visit, to, error.message, HTTPStatus.UNAUTHORIZED)
            return _response(page, visit)
        word = self._sessions.keep(word, name, token)
        return _redirection(to, cookie(request, word))

    def refuse(self, error: RefusedError) -> Response:
        """Return the page that says why a request is not served."""
        return _refusal(error)

    @asynccontextmanager
    async def _turn(self, room: asyncio.Semaphore) -> AsyncIterator[None]:
        """Hold a turn. Wait for it half of the time, so that a page that has one can be made."""
        async with asyncio.timeout(self._page_s_max / 2):
            await room.acquire()
        try:
            yield
        finally:
            room.release()


@dataclass(slots=True)
class _Asked:
    """A request, and how far it has come.

    Attributes:
        name: of the cluster; empty: of the only one.
        path: of the page.
        visit: once it is known who asks for what.
        is_begun: whether it had its turn.
    """

    request: Request
    name: str
    path: str
    visit: Visit | None = None
    is_begun: bool = False


def _refusal(error: RefusedError, visit: Visit | None = None) -> Response:
    """Return the page that says why there is no other one."""
    titles = {
        HTTPStatus.NOT_FOUND: "Not found",
        HTTPStatus.FORBIDDEN: "You may not see this",
        HTTPStatus.BAD_GATEWAY: "No answer from the brokers",
        HTTPStatus.GATEWAY_TIMEOUT: "No answer from the brokers",
    }
    title = titles.get(error.status, "It cannot be shown")
    content: list[Child] = [element("p", error.why, class_="problem", role="alert")]
    if error.status is HTTPStatus.FORBIDDEN and visit is not None:
        content.append(element("p", visit.link("Give another token", TOKEN_PATH)))
    page = Page(title, content, status=error.status)
    return _response(page, visit)


def _response(page: Page, visit: Visit | None) -> Response:
    fields = {"WWW-Authenticate": "Bearer"} if page.status is HTTPStatus.UNAUTHORIZED else {}
    return Response(write(page, visit, datetime.now(UTC)), status=page.status, fields=fields)


def _redirection(to: str, set_cookie: str = "") -> Response:
    fields = {"Location": to} | ({"Set-Cookie": set_cookie} if set_cookie else {})
    return Response(b"", HTTPStatus.SEE_OTHER, fields=fields)


def _list(names: list[str]) -> Page:
    """Return the page of all clusters, where there may be several."""
    return Page(
        "Clusters",
        table(
            "Clusters",
            ["Cluster"],
            [[link(name, f"/{_CLUSTERS}/{name}")] for name in names],
            "There is no Cluster yet: `kubectl apply` makes one.",
        ),
    )


def _split(path: str) -> tuple[str, str]:
    """Return the name of the cluster, and the path of its page."""
    parts = path.split("/")
    if len(parts) < 4 or parts[1] != _CLUSTERS:
        return "", path
    return "/".join(parts[2:4]), "/" + "/".join(parts[4:])


def _status_of(error: MillraceError) -> HTTPStatus:
    match error:
        case AccessDeniedError():
            return HTTPStatus.FORBIDDEN
        case UnknownTopicOrPartitionError():
            return HTTPStatus.NOT_FOUND
        case ConnectionFailedError():
            return HTTPStatus.BAD_GATEWAY
        case RequestTimedOutError():
            return HTTPStatus.GATEWAY_TIMEOUT
        case InvalidRequestError():
            return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE
