"""One connection has many users: who gives it up must not leave the others waiting for ever."""

import asyncio

import pytest
from tests.fakes.broker import FakeBroker

from millrace.client import ClosedError, Consumer, Producer
from millrace.client._cluster import calls
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.core.errors import ConnectionFailedError, InvalidConfigError
from millrace.proto.v1 import cluster_pb2


async def _ask(connection: Connection) -> cluster_pb2.GetMetadataResponse:
    response: cluster_pb2.GetMetadataResponse = await connection.cluster.GetMetadata(
        cluster_pb2.GetMetadataRequest()
    )
    return response


async def test_a_call_fails_as_on_a_broken_connection_when_another_gave_it_up() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        connection = await cluster.connection(broker.address)
        broker.metadata_gate.clear()
        call = asyncio.create_task(cluster.refresh())
        await broker.until(lambda: broker.look_ups == 1)
        await cluster.drop(connection)
        broker.metadata_gate.set()
        async with asyncio.timeout(5):
            await call  # It was asked again on a new connection.
        assert broker.look_ups == 2
        await cluster.close()


async def test_the_only_address_that_is_known_is_tried_again_for_the_time_of_the_call() -> None:
    """A Service leads to a broker that was just killed, and a moment later to another one."""
    broker = FakeBroker()
    await broker.start()
    await broker.stop()
    elsewhere = f"0.0.0.0:{broker.port}"  # It leads here, and does not say so.
    cut = 0

    async def cut_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        cut += 1
        writer.close()

    gone = await asyncio.start_server(cut_off, "127.0.0.1", broker.port)
    cluster = Cluster(elsewhere, client_id="me", timeout_ms=10_000)
    call = asyncio.create_task(cluster.refresh())
    await broker.until(lambda: cut > 0 or call.done())
    gone.close()
    await broker.start()
    async with asyncio.timeout(8):
        await call
    assert set(cluster.metadata.brokers) == {broker.broker_id}
    await cluster.close()
    await broker.stop()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no broker listens at 127.0.0.1:1"),
        ("no-such-host.invalid:1", "no-such-host.invalid"),
    ],
)
async def test_what_will_not_pass_is_told_at_once(address: str, said: str) -> None:
    """On this machine nothing is between; and a name that is not there is a slip of the pen."""
    cluster = Cluster(address, client_id="me", timeout_ms=30_000)
    with pytest.raises(ConnectionFailedError, match="no broker can be reached") as met:
        async with asyncio.timeout(15):
            await cluster.refresh()
    assert said in met.value.message
    await cluster.close()


async def test_where_nobody_comes_the_call_ends_in_its_time_and_says_so_once() -> None:
    cluster = Cluster("0.0.0.0:1", client_id="me", timeout_ms=1_500)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionFailedError, match="no broker can be reached") as met:
        await cluster.refresh()
    assert 0.4 < asyncio.get_running_loop().time() - begun < 10
    assert met.value.message.count("no broker listens at 0.0.0.0:1") == 1
    await cluster.close()


async def test_that_nobody_comes_is_told_long_before_the_call_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So a wrong port is seen long before the call gives up."""
    monkeypatch.setattr(calls, "TOLD_AFTER_S", 0.2)
    cluster = Cluster("0.0.0.0:1", client_id="me", timeout_ms=4_000)
    call = asyncio.create_task(cluster.refresh())
    async with asyncio.timeout(3.5):
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not call.done()
    with pytest.raises(ConnectionFailedError):
        await call
    (told,) = caplog.records
    assert "no broker listens at 0.0.0.0:1. It is tried for" in told.getMessage()
    await cluster.close()


async def test_a_call_that_comes_too_late_for_its_connection_fails_as_on_a_broken_one() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        connection = await cluster.connection(broker.address)
        await cluster.drop(connection)
        with pytest.raises(ConnectionFailedError, match="given up"):
            await cluster.on(connection, _ask)
        await cluster.close()


async def test_a_connection_that_is_given_up_between_two_calls_fails_as_a_broken_one() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)

        async def ask_twice(connection: Connection) -> cluster_pb2.GetMetadataResponse:
            await _ask(connection)
            await cluster.drop(connection)  # As another user does.
            return await _ask(connection)

        with pytest.raises(ConnectionFailedError, match="given up"):
            await cluster.on(await cluster.connection(broker.address), ask_twice)
        await cluster.close()


async def test_a_connect_that_failed_when_nobody_waited_any_more_is_tried_anew() -> None:
    async with FakeBroker() as broker:
        await broker.stop()
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        waiting = asyncio.create_task(cluster.connection(broker.address))
        await asyncio.sleep(0)
        connecting = cluster._connecting._tasks[broker.address]
        waiting.cancel()
        await asyncio.wait([waiting, connecting], timeout=10)
        assert connecting.exception() is not None
        await broker.start()
        connection = await cluster.connection(broker.address)
        assert connection.hello.broker_id == broker.broker_id
        await cluster.close()


async def test_a_caller_that_is_cancelled_stays_cancelled() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        connection = await cluster.connection(broker.address)
        broker.metadata_gate.clear()
        call = asyncio.create_task(cluster.on(connection, _ask))
        await broker.until(lambda: broker.look_ups == 1)
        call.cancel()
        await asyncio.wait([call], timeout=5)
        assert call.cancelled()
        broker.metadata_gate.set()
        await cluster.close()


async def test_a_look_up_ends_with_an_error_when_its_client_is_closed() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address)
        broker.metadata_gate.clear()
        look_up = asyncio.create_task(producer.partitions_for("orders"))
        await broker.until(lambda: broker.look_ups == 1)
        await producer.close()
        with pytest.raises(ClosedError):
            await look_up
        broker.metadata_gate.set()


async def test_a_producer_repeats_what_was_in_the_air_when_a_look_up_gave_its_connection_up() -> (
    None
):
    async with FakeBroker(orders=1, others=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"first")
        broker.gate.clear()
        second = producer.send("orders", b"second")
        await broker.until(lambda: broker.requests == 2)
        broker.metadata_failures = 1
        await producer.partitions_for("others")  # Asks a second time, on a new connection.
        broker.gate.set()
        async with asyncio.timeout(5):
            await second
        assert broker.log("orders").values() == [b"first", b"second"]


async def test_a_new_leader_epoch_is_found_although_the_connection_broke_at_its_lookup() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"first")
        broker.log("orders").leader_epoch = 1  # As after a restart.
        look_ups = broker.look_ups
        broker.metadata_gate.clear()
        second = producer.send("orders", b"second")
        await broker.until(lambda: broker.look_ups > look_ups)
        broker.dropped_answers = 1
        await broker.until(lambda: not broker.dropped_answers)
        broker.metadata_gate.set()
        async with asyncio.timeout(5):
            await second
        assert broker.log("orders").values() == [b"first", b"second"]


async def test_a_consumer_goes_on_after_a_look_up_gave_its_connection_up() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address) as producer,
        Consumer(broker.address, metadata_max_age_ms=200) as consumer,
    ):
        await producer.send("orders", b"first")
        await consumer.assign(["orders"], start="beginning")
        assert (await consumer.poll(5_000)).values() == [b"first"]
        broker.metadata_failures = 1
        await broker.until(lambda: not broker.metadata_failures)
        await producer.send("orders", b"second")
        assert (await consumer.poll(5_000)).values() == [b"second"]


async def test_records_for_a_new_topic_are_sent_although_the_connection_broke_at_its_lookup() -> (
    None
):
    async with FakeBroker(orders=1, late=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"first")
        look_ups = broker.look_ups
        broker.metadata_gate.clear()
        late = producer.send("late", b"late")
        await broker.until(lambda: broker.look_ups > look_ups)
        broker.dropped_answers = 1
        await producer.send("orders", b"second")  # Its first stream breaks, and is given up.
        broker.metadata_gate.set()
        async with asyncio.timeout(5):
            await late
        assert broker.log("late").values() == [b"late"]


async def test_a_broker_that_does_not_tell_where_the_leaders_are_is_not_waited_for() -> None:
    async with FakeBroker() as silent, FakeBroker() as other:
        silent.metadata_gate.clear()
        other.create_topic("orders")
        bootstrap = f"{silent.address},{other.address}"
        producer = Producer(bootstrap, metadata_timeout_ms=500)
        # It connects before: that counts, too, and takes longer on a machine that is busy.
        await producer._pipeline.cluster.connection(silent.address)
        async with asyncio.timeout(2.5):  # The default is 3 s.
            assert await producer.partitions_for("orders") == [0]
        assert silent.look_ups == 1
        silent.metadata_gate.set()
        await producer.close()


async def test_a_broker_that_lags_is_not_asked_further_where_another_one_knows_better() -> None:
    async with FakeBroker() as lagging, FakeBroker() as current:
        cluster = Cluster([lagging.address, current.address], client_id="me", timeout_ms=10_000)
        lagging.metadata_epoch = current.metadata_epoch = 7
        await cluster.refresh()
        current.metadata_epoch = 8
        current.create_topic("orders")
        cluster.metadata.epoch = 8  # As told before, by a broker that is gone now.
        assert (await cluster.topic("orders")).name == "orders"
        assert current.look_ups == 1
        await cluster.close()


async def test_how_long_a_leader_may_be_silent_is_a_setting() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, leader_silence_ms=20) as producer,
    ):
        await producer.partitions_for("orders")
        broker.gate.clear()
        look_ups = broker.look_ups
        record = producer.send("orders", b"v")
        await broker.until(lambda: broker.look_ups >= look_ups + 2)
        broker.gate.set()
        await record


async def test_a_broker_that_lags_is_given_the_time_to_catch_up() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        cluster.metadata.epoch = 8
        broker.metadata_epoch = 7
        look_up = asyncio.create_task(cluster.topic("orders"))
        await broker.until(lambda: broker.look_ups == 1)
        broker.create_topic("orders")
        broker.metadata_epoch = 8
        assert (await look_up).name == "orders"
        await cluster.close()


@pytest.mark.parametrize("setting", ["leader_silence_ms", "metadata_timeout_ms"])
async def test_a_time_of_nothing_is_refused(setting: str) -> None:
    with pytest.raises(InvalidConfigError, match=setting):
        Producer("localhost:1", **{setting: 0})  # type: ignore[arg-type]


async def test_where_all_brokers_lag_what_is_not_known_at_all_is_still_learned() -> None:
    async with FakeBroker() as broker:
        cluster = Cluster(broker.address, client_id="me", timeout_ms=10_000)
        cluster.metadata.epoch = 8
        broker.metadata_epoch = 7
        broker.create_topic("orders")
        assert (await cluster.topic("orders")).name == "orders"
        assert cluster.metadata.epoch == 8
        await cluster.close()
