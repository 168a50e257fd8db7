"""Links and streams: what arrives, in which order, and what is lost."""

from collections.abc import Callable

import pytest
from tests.sim.network import (
    KEEPALIVE_US,
    Endpoint,
    Network,
    NetworkEvent,
    Received,
    Refused,
    Stream,
    StreamEnded,
    StreamOpened,
    StreamReceived,
    Weather,
)
from tests.sim.world import MILLISECOND, MINUTE, SECOND, World


class Station:
    """Notes what it gets."""

    def __init__(self, network: Network, name: str) -> None:
        self.name = name
        self.is_powered = True
        self.is_listening = True
        self.events: list[NetworkEvent] = []
        self.times: list[int] = []
        self.world = network.world
        self.endpoint: Endpoint = network.attach(self)

    def deliver(self, event: NetworkEvent) -> None:
        self.events.append(event)
        self.times.append(self.world.now)

    @property
    def messages(self) -> list[object]:
        return [e.message for e in self.events if isinstance(e, Received | StreamReceived)]

    @property
    def ended(self) -> list[Stream]:
        return [event.stream for event in self.events if isinstance(event, StreamEnded)]


class Pair:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.a = Station(self.network, "a")
        self.b = Station(self.network, "b")

    def run(self, duration_us: int) -> None:
        self.world.run_until(self.world.now + duration_us)

    def connect(self) -> tuple[Stream, Stream]:
        stream = self.a.endpoint.open_stream("b", "request")
        self.run(SECOND)
        opened = self.b.events.pop()
        self.b.times.pop()
        assert isinstance(opened, StreamOpened)
        assert opened.request == "request"
        return stream, opened.stream


def test_unary_messages_arrive_once_and_overtake_each_other() -> None:
    pair = Pair()
    for number in range(100):
        pair.a.endpoint.send("b", number)
    pair.run(SECOND)
    assert sorted(pair.b.messages) == list(range(100))  # type: ignore[type-var]
    assert pair.b.messages != list(range(100))


def test_bad_weather_loses_doubles_and_repeats_minutes_later() -> None:
    pair = Pair()
    lift = pair.network.impose(
        [("a", "b")], Weather(loss=0.2, duplication=0.3, lateness=0.1, delay_us=20 * MILLISECOND)
    )
    for number in range(1000):
        pair.a.endpoint.send("b", number)
    lift()
    pair.run(5 * SECOND)
    soon = pair.b.messages
    assert 700 < len(set(soon)) < 900
    assert 180 < len(soon) - len(set(soon)) < 300
    pair.run(10 * MINUTE)
    late = pair.b.messages[len(soon) :]
    assert 50 < len(late) < 120
    assert set(late) <= set(soon)
    assert pair.b.times[-1] > MINUTE
    pair.b.events.clear()
    pair.a.endpoint.send("b", "fair")
    pair.run(SECOND)
    assert pair.b.messages == ["fair"]


def test_a_cut_is_one_way() -> None:
    pair = Pair()
    lift = pair.network.impose([("a", "b")], Weather(is_cut=True))
    pair.a.endpoint.send("b", "lost")
    pair.b.endpoint.send("a", "heard")
    pair.run(SECOND)
    assert (pair.a.messages, pair.b.messages) == (["heard"], [])
    lift()
    pair.run(SECOND)
    assert pair.b.messages == []


def test_a_cut_stays_until_every_fault_that_made_it_ends() -> None:
    pair = Pair()
    first = pair.network.impose([("a", "b")], Weather(is_cut=True))
    second = pair.network.impose([("a", "b")], Weather(is_cut=True))
    first()
    pair.a.endpoint.send("b", "lost")
    pair.run(SECOND)
    second()
    pair.a.endpoint.send("b", "heard")
    pair.run(SECOND)
    assert pair.b.messages == ["heard"]


def test_what_is_under_way_when_the_link_is_cut_is_lost() -> None:
    pair = Pair()
    pair.a.endpoint.send("b", "lost")
    pair.network.impose([("a", "b")], Weather(is_cut=True))
    pair.run(SECOND)
    assert pair.b.messages == []


def test_a_clog_holds_everything_back_and_loses_nothing() -> None:
    pair = Pair()
    lift = pair.network.impose([("a", "b")], Weather(is_clogged=True))
    for number in range(5):
        pair.a.endpoint.send("b", number)
    pair.run(MINUTE)
    assert pair.b.messages == []
    lift()
    pair.run(SECOND)
    assert sorted(pair.b.messages) == list(range(5))  # type: ignore[type-var]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_stream_is_in_order_and_whole_whatever_the_loss(loss: float) -> None:
    pair = Pair()
    stream, far = pair.connect()
    pair.network.impose([("a", "b"), ("b", "a")], Weather(loss=loss, delay_us=10 * MILLISECOND))
    for number in range(200):
        stream.send(number)
        far.send(-number)
    pair.run(5 * MINUTE)
    assert pair.b.messages == list(range(200))
    assert pair.a.messages == [-number for number in range(200)]
    assert (pair.b.times[-1] > 2 * SECOND) == (loss > 0)


@pytest.mark.parametrize("seed", range(30))
def test_a_stream_is_in_order_through_any_sequence_of_short_cuts(seed: int) -> None:
    pair = Pair(seed)
    stream, _ = pair.connect()
    dice = pair.world.random("storm")
    lifts: list[Callable[[], None]] = []
    sent = 0
    for _ in range(300):
        choice = dice.randrange(4)
        if choice == 0 and not lifts:
            lifts.append(pair.network.impose([("a", "b")], Weather(is_cut=True)))
        elif choice == 1 and lifts:
            lifts.pop()()
        else:
            stream.send(sent)
            sent += 1
        if dice.random() < 0.5:
            pair.run(dice.choice((0, 100, 1000)))
    while lifts:
        lifts.pop()()
    pair.run(MINUTE)
    assert stream.is_open
    assert pair.b.messages == list(range(sent))


def test_a_reset_ends_both_ends_once_and_loses_what_is_under_way() -> None:
    pair = Pair()
    stream, far = pair.connect()
    stream.send("lost")
    stream.reset()
    far.send("lost, too")
    pair.run(SECOND)
    assert pair.b.messages == pair.a.messages == []
    assert pair.b.ended == [far]
    assert pair.a.ended == []  # Who resets a stream knows.
    stream.send("never")
    far.reset()
    pair.run(SECOND)
    assert (len(pair.a.events), len(pair.b.events)) == (0, 1)


def test_the_network_resets_streams_for_both_ends() -> None:
    pair = Pair()
    stream, far = pair.connect()
    assert pair.network.reset_streams(pair.world.random("reset"), 1.0, ["a"]) == 1
    pair.run(SECOND)
    assert (pair.a.ended, pair.b.ended) == ([stream], [far])
    assert not stream.is_open
    assert not far.is_open


def test_a_stream_survives_a_short_cut_and_not_a_long_one() -> None:
    pair = Pair()
    stream, _ = pair.connect()
    lift = pair.network.impose([("a", "b")], Weather(is_cut=True))
    stream.send("short")
    pair.run(KEEPALIVE_US // 2)
    assert pair.b.messages == []
    lift()
    pair.run(SECOND)
    assert pair.b.messages == ["short"]
    pair.network.impose([("a", "b"), ("b", "a")], Weather(is_cut=True))
    stream.send("long")
    pair.run(KEEPALIVE_US + SECOND)
    assert pair.a.ended == [stream]
    assert pair.b.messages == ["short"]
    assert pair.network.lost_streams == 1


def test_a_process_that_dies_resets_its_streams_and_a_machine_without_power_does_not() -> None:
    pair = Pair()
    stream, _ = pair.connect()
    other, _ = pair.connect()
    pair.network.on_process_ended("b", is_silent=False)
    pair.run(SECOND)
    assert pair.a.ended == [stream, other]
    third, _ = pair.connect()
    pair.b.is_powered = pair.b.is_listening = False
    pair.network.on_process_ended("b", is_silent=True)
    pair.run(SECOND)
    assert third not in pair.a.ended
    pair.run(KEEPALIVE_US)
    assert pair.a.ended[-1] is third


def test_a_machine_without_a_process_refuses_and_one_without_power_is_silent() -> None:
    pair = Pair()
    pair.b.is_listening = False
    pair.a.endpoint.send("b", "anybody?")
    stream = pair.a.endpoint.open_stream("b", "request")
    pair.run(SECOND)
    assert {type(event) for event in pair.a.events} == {Refused, StreamEnded}
    assert pair.a.ended == [stream]
    pair.a.events.clear()
    pair.b.is_powered = False
    pair.a.endpoint.send("b", "anybody?")
    stream = pair.a.endpoint.open_stream("b", "request")
    pair.run(KEEPALIVE_US // 2)
    assert pair.a.events == []
    pair.run(KEEPALIVE_US)
    assert pair.a.ended == [stream]
    assert pair.b.events == []


def test_an_old_request_reaches_the_process_that_then_lives() -> None:
    pair = Pair()
    pair.network.impose([("a", "b")], Weather(lateness=1.0))
    pair.a.endpoint.send("b", "old")
    pair.run(SECOND)
    pair.network.on_process_ended("b", is_silent=False)
    pair.run(10 * MINUTE)
    assert pair.b.messages == ["old", "old"]


def test_a_stream_whose_opening_never_arrived_ends_unheard() -> None:
    pair = Pair()
    pair.network.impose([("a", "b")], Weather(is_cut=True))
    stream = pair.a.endpoint.open_stream("b", "request")
    pair.run(KEEPALIVE_US + SECOND)
    assert pair.a.ended == [stream]
    assert pair.b.events == []
