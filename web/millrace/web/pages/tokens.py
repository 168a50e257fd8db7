"""The page that takes a visitor's token, which brokers then judge: the page itself knows nobody."""

from http import HTTPStatus
from typing import Final

from millrace.core.guard.service_account_token import audience_problem, sending_problem
from millrace.core.guard.token_file import TOKEN_CHARACTERS_MAX, token_problem
from millrace.runtime.page_messages import RefusedError, Request
from millrace.web.clusters import Place
from millrace.web.markup import Markup, element
from millrace.web.pages.layout import TOKEN_PATH, Page, Visit

_TITLE: Final = "Who are you?"


def page(visit: Visit, to: str, problem: str = "", status: HTTPStatus = HTTPStatus.OK) -> Page:
    """Return the page with the form.

    Args:
        to: the page that is shown afterwards.
        problem: why the last token does not do, or why one is needed; empty: nothing is wrong.
    """
    return Page(
        _TITLE,
        [
            element("p", problem, class_="problem", role="alert") if problem else None,
            element(
                "form",
                element("input", type="hidden", name="to", value=to),
                element(
                    "label",
                    "Token",
                    element(
                        "input",
                        type="password",
                        name="token",
                        required=True,
                        autocomplete="off",
                        autofocus=True,
                        maxlength=TOKEN_CHARACTERS_MAX,
                    ),
                ),
                element("button", "Show what it may see"),
                action=visit.address(TOKEN_PATH),
                method="post",
            ),
            _advice(visit.cluster.place),
        ],
        status=status,
    )


def checked(token: str, place: Place) -> str:
    """Return a token that may be sent to the brokers of a place.

    Raises:
        RefusedError: it may not; says why, and repeats nothing of it.
    """
    token = token.strip()
    problem = token_problem(token) or sending_problem(token)
    if not problem and place.audience:
        problem = audience_problem(token, place.audience)
    if problem:
        raise RefusedError(HTTPStatus.BAD_REQUEST, problem)
    return token


def bearer(request: Request, place: Place) -> str:
    """Return the token that comes with a request itself, as programs send it; empty: none.

    Raises:
        RefusedError: it may not be sent on.
    """
    given = request.fields.get("authorization", "")
    if not given:
        return ""
    kind, _, token = given.partition(" ")
    if kind.lower() != "bearer":
        raise RefusedError(HTTPStatus.BAD_REQUEST, "authorization must be: Bearer, and a token")
    return checked(token, place)


def _advice(place: Place) -> Markup:
    if not place.audience:
        return element(
            "p",
            "It is in the file that ",
            element("code", "millrace token new"),
            " wrote, or ask who runs the cluster.",
            class_="quiet",
        )
    return element(
        "p",
        "This makes one that counts for an hour, of a ServiceAccount that you may name: ",
        element("code", f"kubectl create token ACCOUNT --audience {place.audience}"),
        class_="quiet",
    )
