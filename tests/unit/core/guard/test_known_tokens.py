"""Which tokens are known, and when somebody has to be asked (G8)."""

from millrace.core.guard.identity import Identity
from millrace.core.guard.known_tokens import (
    AGAIN_MS,
    AWAY_MS,
    REFUSED_MS,
    REVIEW_MS,
    KnownTokens,
    Standing,
)

ALICE = Identity("alice")
KEY, OTHER = b"1", b"2"


def test_a_token_is_good_until_its_review_is_due() -> None:
    tokens = KnownTokens()
    assert tokens.standing(KEY, 0) is Standing.UNKNOWN
    tokens.on_accepted(KEY, ALICE, 0)
    assert tokens.standing(KEY, REVIEW_MS - 1) is Standing.GOOD
    assert tokens.identity(KEY) == ALICE
    assert tokens.standing(KEY, REVIEW_MS) is Standing.DUE
    tokens.on_accepted(KEY, ALICE, REVIEW_MS)
    assert tokens.standing(KEY, REVIEW_MS) is Standing.GOOD
    assert tokens.standing(OTHER, REVIEW_MS) is Standing.UNKNOWN


def test_a_good_token_goes_on_for_a_while_when_nobody_answers() -> None:
    tokens = KnownTokens()
    tokens.on_accepted(KEY, ALICE, 0)
    for now_ms in range(REVIEW_MS, AWAY_MS, AGAIN_MS):
        assert tokens.standing(KEY, now_ms) is Standing.DUE
        tokens.on_no_answer(KEY, now_ms)
        assert tokens.standing(KEY, now_ms + AGAIN_MS - 1) is not Standing.DUE
    assert tokens.standing(KEY, AWAY_MS) is Standing.UNKNOWN


def test_no_answer_makes_no_token_known() -> None:
    tokens = KnownTokens()
    tokens.on_no_answer(KEY, 0)
    assert tokens.standing(KEY, 0) is Standing.UNKNOWN
    assert not len(tokens)


def test_a_revoked_token_is_refused_and_asked_about_again_later() -> None:
    tokens = KnownTokens()
    tokens.on_accepted(KEY, ALICE, 0)
    tokens.on_refused(KEY, "its account is gone", 10)
    assert tokens.standing(KEY, 10 + REFUSED_MS - 1) is Standing.REFUSED
    assert tokens.reason(KEY) == "its account is gone"
    assert tokens.standing(KEY, 10 + REFUSED_MS) is Standing.UNKNOWN
    assert not len(tokens)


def test_bad_tokens_do_not_drive_out_good_ones() -> None:
    tokens = KnownTokens(tokens_max=3)
    tokens.on_accepted(KEY, ALICE, 0)
    for number in range(100):
        tokens.on_refused(b"bad %d" % number, "it is forged", 1)
    assert tokens.standing(KEY, 1) is Standing.GOOD
    assert tokens.standing(b"bad 99", 1) is Standing.REFUSED
    assert tokens.standing(b"bad 1", 1) is Standing.UNKNOWN
    assert len(tokens) == 1 + 3


def test_of_too_many_good_tokens_the_least_used_is_forgotten() -> None:
    tokens = KnownTokens(tokens_max=2)
    tokens.on_accepted(KEY, ALICE, 0)
    tokens.on_accepted(OTHER, ALICE, 0)
    assert tokens.standing(KEY, 1) is Standing.GOOD
    tokens.on_accepted(b"3", ALICE, 1)
    assert tokens.standing(OTHER, 1) is Standing.UNKNOWN
    assert tokens.standing(KEY, 1) is Standing.GOOD
