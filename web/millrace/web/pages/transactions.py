"""Transactions: what is open, what waits for its end to be written, and what hangs."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from millrace.client import (
    Admin,
    HangingTransaction,
    TransactionalIdAuthorizationFailedError,
    TransactionDescription,
    TransactionListing,
    TransactionPart,
)
from millrace.core.words import count
from millrace.runtime.page_messages import RefusedError
from millrace.web.markup import Child, Markup, element, joined
from millrace.web.pages.layout import (
    Page,
    Visit,
    age_of,
    facts,
    number,
    pager,
    prose,
    table,
    time_of,
)

TRANSACTIONS_MAX: Final = 100
"""Transactional ids on a page."""
PARTS_MAX: Final = 500
"""Partitions and groups of a transaction on its page."""
SEARCHED_MAX: Final = 500
"""Partitions of a cluster in which the page looks for transactions that hang: each is a request."""
_AT_ONCE: Final = 8
_STATES: Final = {
    "empty": "no transaction yet",
    "ongoing": "open",
    "prepare_commit": "committed, not written everywhere",
    "prepare_abort": "aborted, not written everywhere",
    "complete_commit": "committed",
    "complete_abort": "aborted",
}
_UNDECIDED: Final = ("ongoing", "prepare_commit", "prepare_abort")


async def page(visit: Visit) -> Page:
    """Return the page of the transactions that are not over, or of all transactional ids."""
    admin = visit.cluster.admin
    are_all = visit.text("all") == "yes"
    listed = await admin.list_transactions(() if are_all else _UNDECIDED)
    if not are_all:
        listed.sort(key=lambda listing: -listing.open_ms)
    first, shown = visit.part(listed, TRANSACTIONS_MAX)
    problems, hanging = await asyncio.gather(_problems(admin, shown), _hanging(visit))
    return Page(
        "Transactions",
        [
            hanging,
            table(
                "All transactional ids" if are_all else "Not over",
                [
                    *("Transactional id", "State", number("For")),
                    *(number("Producer"), number("Epoch"), "It waits for"),
                ],
                [
                    _row(visit, listing, problem)
                    for listing, problem in zip(shown, problems, strict=True)
                ],
                "There is no transactional id yet."
                if are_all
                else "No transaction is open, and all that is decided is written.",
            ),
            pager(visit, first, len(shown), len(listed), TRANSACTIONS_MAX),
            element(
                "p",
                element("a", "Only those that are not over", href=visit.again(all=None, first=None))
                if are_all
                else element("a", "All transactional ids", href=visit.again(all="yes", first=None)),
            ),
        ],
    )


def _row(visit: Visit, listing: TransactionListing, problem: Child) -> list[Child]:
    return [
        visit.link(listing.transactional_id, "/transaction", id=listing.transactional_id),
        _STATES[listing.state],
        age_of(listing.open_ms) if listing.open_ms else None,
        *(
            (None, None)
            if listing.is_shared
            else (str(listing.producer_id), listing.producer_epoch)
        ),
        problem,
    ]


async def _problems(admin: Admin, listed: Sequence[TransactionListing]) -> list[Child]:
    """Return for each transaction what it waits for; empty: nothing, or it is open."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(listing: TransactionListing) -> Child:
        if listing.state not in ("prepare_commit", "prepare_abort"):
            return ""
        async with room:
            described = await admin.describe_transaction(listing.transactional_id)
        owed = [] if described is None else [part for part in described.parts if part.is_owed]
        if not owed:
            return ""
        more = f", and {count(len(owed) - 1, 'other')}" if len(owed) > 1 else ""
        return f"{_named(owed[0])}{more}"

    return list(await asyncio.gather(*map(look, listed)))


async def _hanging(visit: Visit) -> Markup:
    """Return the transactions that no coordinator knows; where to look, if there is too much."""
    admin = visit.cluster.admin
    topics = [topic for topic in (await admin.describe_topics()).values() if not topic.is_internal]
    partitions = sum(len(topic.partitions) for topic in topics)
    if partitions > SEARCHED_MAX:
        return element(
            "p",
            prose(
                "`millrace transaction hanging` finds transactions that hang: "
                f"{partitions:,} partitions are too many for this page."
            ),
            class_="quiet",
        )
    try:
        found = await admin.find_hanging_transactions()
    except TransactionalIdAuthorizationFailedError:
        words = "Who may see all transactional ids can see here which transactions hang."
        return element("p", words, class_="quiet")
    if not found:
        return element("p", "No transaction hangs.", class_="well", role="status")
    words = (
        f"{count(len(found), 'transaction hangs', 'transactions hang')}: open in a partition, and "
        "known to no coordinator. Readers of committed records wait there. "
        "`millrace transaction hanging --abort` ends what hangs."
    )
    return joined(
        element("div", element("p", prose(words)), class_="problem", role="status"),
        table(
            "Hanging",
            [
                *("Topic", number("Partition"), number("Producer"), number("Epoch")),
                *(number("First offset"), "Open since"),
            ],
            [_hanging_row(visit, hanging) for hanging in found[:TRANSACTIONS_MAX]],
            "",
        ),
    )


def _hanging_row(visit: Visit, hanging: HangingTransaction) -> list[Child]:
    transaction = hanging.transaction
    return [
        visit.link(hanging.topic, "/topic", name=hanging.topic),
        hanging.partition,
        *(str(transaction.producer_id), transaction.producer_epoch, transaction.first_offset),
        time_of(transaction.began_at),
    ]


async def transaction(visit: Visit) -> Page:
    """Return the page of one transactional id.

    Raises:
        RefusedError: nothing is known of it.
    """
    name = visit.text("id")
    found = await visit.cluster.admin.describe_transaction(name)
    if found is None:
        raise RefusedError(
            HTTPStatus.NOT_FOUND, f"nothing is known of the transactional id {name!r}"
        )
    parts = sorted(found.parts, key=lambda part: not part.is_owed)
    left_out = len(parts) - PARTS_MAX
    return Page(
        found.transactional_id,
        [
            facts(
                ("State", _STATES[found.state]),
                ("For", age_of(found.open_ms) if found.open_ms else None),
                ("Lease" if found.is_shared else "Time-out", age_of(found.timeout_ms)),
                *_owner(found),
                ("Last end", found.last_end),
            ),
            table(
                "What takes part",
                ["Kind", "Name", number("Partition"), "Written", "Problem"],
                [_part(visit, part, found) for part in parts[:PARTS_MAX]],
                "No partition and no group: no transaction is open.",
            ),
            element("p", f"{left_out:,} more are left out.") if left_out > 0 else None,
        ],
        above="/transactions",
    )


def _part(visit: Visit, part: TransactionPart, found: TransactionDescription) -> list[Child]:
    is_group = part.partition is None
    path = "/group" if is_group else "/topic"
    nameless = "(hidden)" if part.is_hidden else "(deleted)"
    return [
        "group" if is_group else "topic",
        visit.link(part.name, path, name=part.name) if part.name else nameless,
        part.partition,
        None if found.state == "ongoing" else "not yet" if part.is_owed else "yes",
        part.problem,
    ]


def _named(part: TransactionPart) -> str:
    if part.partition is None:
        name = f"group {part.name}" if part.name else "a hidden group"
    else:
        nameless = "a hidden topic" if part.is_hidden else "a deleted topic"
        name = f"{part.name or nameless}-{part.partition}"
    return f"{name}: {part.problem}" if part.problem else name


def _owner(found: TransactionDescription) -> list[tuple[str, Child]]:
    """Return who writes the transactions of an id: a producer, or a run of an application."""
    if not found.is_shared:
        return [("Producer", str(found.producer_id)), ("Epoch", found.producer_epoch)]
    version = found.version
    return [
        ("Run", found.run_id),
        ("Transaction", found.number),
        ("Participants", len(found.participants)),
        ("Version", None if version is None else version.number),
        ("Query", None if version is None else version.query_id or None),
        ("Checkpoint", None if version is None else version.checkpoint or None),
    ]
