"""A client for each visitor's token: shared by their pages, bounded, and closed when they left."""

import asyncio
from typing import cast

from millrace.client import Admin
from millrace.web.clients import CLIENTS_MAX, Clients, credentials
from millrace.web.clusters import Place

PLACE = Place("h:1")


class Made:
    """Clients that were made, by their tokens, and whether they are open."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def connect(self, place: Place, token: str) -> Admin:
        self.open.append(token)
        return cast(Admin, _Client(self, token))


class _Client:
    def __init__(self, made: Made, token: str) -> None:
        self._made, self._token = made, token

    async def close(self) -> None:
        self._made.open.remove(self._token)


async def use(clients: Clients, token: str, place: Place = PLACE) -> Admin:
    async with clients.of("", place, token) as cluster:
        return cluster.admin


async def test_pages_of_a_visitor_share_a_client_and_others_have_their_own() -> None:
    made = Made()
    clients = Clients(made.connect)
    assert await use(clients, "a") is await use(clients, "a")
    assert await use(clients, "b") is not await use(clients, "a")
    assert await use(clients, "") is not await use(clients, "a")
    assert await use(clients, "a", Place("h:2")) is not await use(clients, "a")
    await clients.close()
    assert made.open == []


async def test_a_client_that_nobody_uses_is_closed_after_a_while() -> None:
    made = Made()
    clients = Clients(made.connect, idle_s=0.02)
    async with clients.of("", PLACE, "busy"):
        await use(clients, "a")
        await asyncio.sleep(0.2)
        assert made.open == ["busy"]
    await asyncio.sleep(0.2)
    assert made.open == []
    assert len(clients) == 0


async def test_of_many_visitors_those_longest_away_make_room() -> None:
    made = Made()
    clients = Clients(made.connect)
    async with clients.of("", PLACE, "busy"):
        for number in range(3 * CLIENTS_MAX):
            await use(clients, str(number))
            await asyncio.sleep(0)
            assert len(clients) <= CLIENTS_MAX
        await asyncio.sleep(0)
        assert len(made.open) <= CLIENTS_MAX
        assert {"busy", str(3 * CLIENTS_MAX - 1)} <= set(made.open)
        assert "0" not in made.open
    await clients.close()


def test_a_client_calls_in_the_name_of_its_visitor_alone() -> None:
    assert credentials(PLACE, "x") == {"token": "x"}
    assert credentials(PLACE, "") == {"token_file": "none"}
    assert credentials(Place("h:1", "/ca.crt"), "")["tls_ca_file"] == "/ca.crt"


async def test_a_token_is_shown_nowhere() -> None:
    clients = Clients(Made().connect)
    async with clients.of("", PLACE, "secret-word") as cluster:
        assert "secret-word" not in repr(cluster)
    await clients.close()
