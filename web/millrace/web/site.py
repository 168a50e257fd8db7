"""The site: which page answers which address, and what is said when it cannot.

Only some pages are made at a time, and each has to be ready in some seconds: a broker that does not
answer, or a thousand browsers, hold up nothing for longer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from millrace.client import MillraceError
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
from millrace.web.clusters import Clusters
from millrace.web.markup import element, link
from millrace.web.pages import (
    brokers,
    cluster,
    groups,
    quotas,
    records,
    topics,
    transactions,
)
from millrace.web.pages.layout import Page, Visit, table, write
from millrace.web.reading import BATCH_BYTES_MAX

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
_HOSTS: Final = OwnHosts(
    {"localhost", "127.0.0.1", "[::1]"}.__contains__,
    "this page is for this machine alone: open it as http://localhost, with its port",
)


class Site:
    """The pages of clusters; implements `Pages` of the server. Used on one event loop.

    Args:
        page_s_max: how long a request may take.
    """

    hosts = _HOSTS

    def __init__(self, clusters: Clusters, page_s_max: float = PAGE_S_MAX) -> None:
        self._clusters, self._page_s_max = clusters, page_s_max
        self._room = asyncio.Semaphore(PAGES_AT_ONCE)
        self._room_to_read = asyncio.Semaphore(READS_AT_ONCE)
        self._files = {
            path: files("millrace.web").joinpath(path[1:]).read_bytes() for path in _FILES
        }

    async def respond(self, request: Request) -> Response:
        """Return the response to a request; never raises because of what it asks for."""
        if request.path in self._files:
            return Response(self._files[request.path], content_type=_FILES[request.path])
        visit, is_begun = None, False
        name, path = _split(request.path)
        room = self._room_to_read if path in _WITH_RECORDS else self._room
        try:
            async with asyncio.timeout(self._page_s_max), self._turn(room):
                is_begun = True
                known = await self._clusters.all()
                if path == "/" and not name and "" not in known:
                    return _response(_list(sorted(known)), None)
                if name not in known:
                    raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}")
                if path not in _PAGES:
                    visit = Visit(known[name], "")
                    raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no page {path!r}")
                visit = Visit(known[name], path, request.query)
                return _response(await _PAGES[path](visit), visit)
        except RefusedError as error:
            return _refusal(error, visit)
        except TimeoutError:
            if not is_begun:
                why = (
                    f"this page had no turn in {self._page_s_max / 2:g} s, as many are asked for: "
                    "try again"
                )
                return _refusal(RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, why), visit)
            why = f"the brokers did not answer in {self._page_s_max:g} s: try again"
            return _refusal(RefusedError(HTTPStatus.GATEWAY_TIMEOUT, why), visit)
        except CreditTooSmallError:
            why = (
                f"a batch is larger than {size(BATCH_BYTES_MAX)}, which this page does not read; "
                "`millrace consume` does"
            )
            return _refusal(RefusedError(HTTPStatus.INSUFFICIENT_STORAGE, why), visit)
        except MillraceError as error:
            return _refusal(RefusedError(_status_of(error), error.message), visit)
        except Exception as error:
            events.PAGE_FAILED.log(_log, path=request.path, cause=error)
            why = "the page has failed by a mistake of its own; the log of its process says more"
            # Without the visit: what failed may be the frame that is made of it.
            return _refusal(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, why))

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


def _refusal(error: RefusedError, visit: Visit | None = None) -> Response:
    """Return the page that says why there is no other one."""
    titles = {
        HTTPStatus.NOT_FOUND: "Not found",
        HTTPStatus.BAD_GATEWAY: "No answer from the brokers",
        HTTPStatus.GATEWAY_TIMEOUT: "No answer from the brokers",
    }
    title = titles.get(error.status, "It cannot be shown")
    page = Page(title, element("p", error.why, class_="problem", role="alert"), status=error.status)
    return _response(page, visit)


def _response(page: Page, visit: Visit | None) -> Response:
    return Response(write(page, visit, datetime.now(UTC)), status=page.status)


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
        case UnknownTopicOrPartitionError():
            return HTTPStatus.NOT_FOUND
        case ConnectionFailedError():
            return HTTPStatus.BAD_GATEWAY
        case RequestTimedOutError():
            return HTTPStatus.GATEWAY_TIMEOUT
        case InvalidRequestError():
            return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE
