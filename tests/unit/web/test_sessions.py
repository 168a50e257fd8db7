"""Tokens are remembered for those who gave them, for some time, and never too many."""

import base64
import json
from collections.abc import Callable

import pytest

from millrace.runtime.page_messages import Request
from millrace.web import sessions
from millrace.web.sessions import (
    AGE_S_MAX,
    CLUSTERS_MAX,
    IDLE_S_MAX,
    SESSIONS_MAX,
    Sessions,
    cookie,
    shown_word,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def asked(host: str, **fields: str) -> Request:
    return Request("GET", "/", {}, {"host": host, **fields})


def test_a_token_is_for_the_one_who_gave_it_and_for_its_cluster() -> None:
    kept = Sessions()
    word, other = kept.keep("", "a/b", "one"), kept.keep("", "a/b", "two")
    assert (kept.token(word, "a/b"), kept.token(other, "a/b")) == ("one", "two")
    assert kept.token(word, "a/c") == kept.token("", "a/b") == kept.token("guess", "a/b") == ""


def test_a_visitor_has_another_word_with_each_token_and_no_word_that_somebody_planted() -> None:
    kept = Sessions()
    first = kept.keep("planted", "a/b", "one")
    second = kept.keep(first, "a/c", "two")
    assert len({first, second, "planted"}) == 3
    assert (kept.token(second, "a/b"), kept.token(second, "a/c")) == ("one", "two")
    assert kept.token(first, "a/b") == kept.token("planted", "a/b") == ""
    assert len(kept) == 1


def test_a_visit_ends_when_its_visitor_is_away_or_it_is_old() -> None:
    clock = Clock()
    kept = Sessions(clock)
    away, busy = kept.keep("", "", "one"), kept.keep("", "", "two")
    while clock.now + IDLE_S_MAX < AGE_S_MAX:
        clock.now += IDLE_S_MAX - 1
        assert kept.token(busy, "") == "two"
    assert kept.token(away, "") == ""
    clock.now = AGE_S_MAX + 1
    assert kept.token(busy, "") == ""
    assert len(kept) == 0


def test_tokens_are_bounded_and_those_longest_unused_go() -> None:
    kept = Sessions()
    words = [kept.keep("", "", f"token {n}") for n in range(SESSIONS_MAX)]
    assert kept.token(words[0], "") == "token 0"
    kept.keep("", "", "one more")
    assert len(kept) == SESSIONS_MAX
    assert kept.token(words[0], "") == "token 0"
    assert kept.token(words[1], "") == ""
    word = ""
    for number in range(CLUSTERS_MAX + 1):
        word = kept.keep(word, f"a/{number}", "x")
    assert kept.token(word, "a/0") == ""
    assert kept.token(word, f"a/{CLUSTERS_MAX}") == "x"


def jwt(subject: str, number: int) -> str:
    claims = json.dumps({"sub": subject, "jti": number}).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature-{number}"


@pytest.mark.parametrize("token", [lambda number: "theirs", lambda number: jwt("theirs", number)])
def test_who_comes_again_and_again_pushes_nobody_else_out(token: Callable[[int], str]) -> None:
    kept = Sessions()
    word = kept.keep("", "", jwt("ours", 0))
    again = [kept.keep("", "", token(number)) for number in range(2 * SESSIONS_MAX)]
    assert kept.token(word, "") == jwt("ours", 0)
    assert kept.token(again[-1], "") == token(2 * SESSIONS_MAX - 1)
    assert len(kept) == SESSIONS_MAX


def test_a_token_that_is_none_of_kubernetes_is_its_own_owner() -> None:
    kept = Sessions()
    for token in ("a.b.c", "a.e30.c", "a.W10.c", "..", "a." + "\N{SNOWMAN}" + ".c", "x"):
        assert kept.token(kept.keep("", "", token), "") == token


def test_a_token_is_forgotten_on_request() -> None:
    kept = Sessions()
    word = kept.keep(kept.keep("", "a/b", "one"), "a/c", "two")
    kept.forget(word, "a/b")
    assert (kept.token(word, "a/b"), kept.token(word, "a/c")) == ("", "two")
    kept.forget(word, "a/c")
    kept.forget(word, "a/c")
    assert len(kept) == 0


def test_a_browser_shows_its_word_for_this_port_alone() -> None:
    said = cookie(asked("localhost:7098"), "word")
    assert said == "millrace-7098=word; Path=/; HttpOnly; SameSite=Strict"
    shown = "other=1; millrace-7099=theirs; millrace-7098=word"
    assert shown_word(asked("localhost:7098", cookie=shown)) == "word"
    assert shown_word(asked("localhost", cookie=shown)) == shown_word(asked("localhost:7098")) == ""


def test_a_word_cannot_be_guessed() -> None:
    assert sessions._WORD_BYTES * 8 >= 128, "OWASP asks for 64 bits of entropy at least"
