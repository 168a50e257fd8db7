"""Addresses of names while the DNS answers late, or nobody."""

import asyncio
import socket
from typing import Any

import pytest

from millrace.runtime import host, look_ups
from millrace.runtime.look_ups import LookUps

_PLACE = ("192.0.2.7", 0)
_OTHER = ("192.0.2.8", 0)


class Dns:
    """Answers the loop's look-ups.

    Attributes:
        places: of each name.
        answers: whether it does.
        error: raised instead of an answer.
        asked: the names that it was asked for.
    """

    def __init__(self, **places: tuple[str, int]) -> None:
        self.places = places
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: OSError | None = None
        self.asked: list[str] = []
        asyncio.get_running_loop().getaddrinfo = self._answer  # type: ignore[assignment,method-assign]

    async def _answer(self, name: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(name)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        if name not in self.places:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", self.places[name])]


async def test_each_look_up_gives_what_the_dns_says_now() -> None:
    dns, names = Dns(a=_PLACE), LookUps()
    assert await names.places("a") == [_PLACE]
    dns.places["a"] = _OTHER
    assert await names.places("a") == [_OTHER]


async def test_a_silent_dns_leaves_the_last_address() -> None:
    dns, names = Dns(a=_PLACE), LookUps()
    await names.places("a")
    dns.answers.clear()
    assert await asyncio.wait_for(names.places("a"), 10) == [_PLACE]
    assert await asyncio.wait_for(names.places("a"), 10) == [_PLACE]
    assert dns.asked == ["a", "a"]  # One look-up waits for the answer.
    dns.places["a"] = _OTHER
    dns.answers.set()
    assert await names.places("a") == [_OTHER]


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
async def test_a_failure_without_an_answer_leaves_the_last_address(number: int) -> None:
    dns, names = Dns(a=_PLACE), LookUps()
    await names.places("a")
    dns.error = socket.gaierror(number, "no answer")
    assert await names.places("a") == [_PLACE]
    with pytest.raises(socket.gaierror):
        await names.places("b")


async def test_a_name_that_there_is_no_more_is_not_found() -> None:
    dns, names = Dns(a=_PLACE), LookUps()
    await names.places("a")
    del dns.places["a"]
    with pytest.raises(socket.gaierror):
        await names.places("a")


async def test_the_first_look_up_of_a_name_waits_for_its_answer() -> None:
    dns, names = Dns(a=_PLACE), LookUps()
    dns.answers.clear()
    looking = asyncio.create_task(names.places("a"))
    await asyncio.sleep(2 * look_ups.PATIENCE_SECONDS)
    assert not looking.done()
    dns.answers.set()
    assert await looking == [_PLACE]


async def test_a_look_up_that_fails_when_nobody_waits_for_it_is_no_unexpected_error() -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    dns, names = Dns(), LookUps()
    dns.answers.clear()
    looking = asyncio.create_task(names.places("a"))
    await asyncio.sleep(0)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    dns.answers.set()
    with pytest.raises(socket.gaierror):
        await names.places("a")
    assert seen == []


async def test_so_many_names_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ups, "NAMES_MAX", 2)
    dns, names = Dns(a=_PLACE, b=_PLACE, c=_PLACE), LookUps()
    for name in ("a", "b", "a", "c"):
        await names.places(name)
    dns.error = socket.gaierror(socket.EAI_AGAIN, "no answer")
    assert await names.places("a") == await names.places("c") == [_PLACE]
    with pytest.raises(socket.gaierror):
        await names.places("b")


async def test_a_connection_is_made_without_the_dns_to_where_the_last_one_was() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"broker:{listening.getsockname()[1]}"
        dns, machine = Dns(broker=("127.0.0.1", 0)), host.RealHost()
        await machine.connect(address, asyncio.BufferedProtocol)
        dns.answers.clear()
        again = asyncio.wait_for(machine.connect(address, asyncio.BufferedProtocol), 10)
        assert isinstance(await again, asyncio.BufferedProtocol)
