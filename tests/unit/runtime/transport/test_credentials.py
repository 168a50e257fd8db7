"""Credentials out of files: what counts, when it changes, and what the other end learns."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop
from tests.fakes.certificate_files import CertificateFiles
from tests.fakes.until import until

from millrace.core.errors import InvalidConfigError
from millrace.runtime import host
from millrace.runtime.certificates import read
from millrace.runtime.transport.calls import CallError, ServerCall, Status
from millrace.runtime.transport.credentials import (
    ClientCredentials,
    ServerCredentials,
    TlsFiles,
    principal_of,
)
from millrace.runtime.transport.drpc import client
from millrace.runtime.transport.drpc.connector import Connector, PeerRefusedError
from millrace.runtime.transport.drpc.server import DrpcServer
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.grpc_channel import Channel
from millrace.runtime.transport.served_connections import ServerLimits

NAMES = ("localhost", "127.0.0.1")
BROKER = "spiffe://millrace/ns/default/cluster/c/broker/b1"
CONNECTION = ConnectionLimits(message_bytes_max=1 << 20, keepalive_ms=0, dead_after_ms=5000)
LIMITS = ServerLimits(
    connection=CONNECTION,
    connections_max=100,
    connections_per_host_max=100,
    received_bytes_max=8 << 20,
    silence_ms_max=10_000,
    idle_ms_max=-1,
    age_ms_max=-1,
    message_ms_max=10_000,
    handshake_ms_max=10_000,  # The machine may be busy.
)
METHOD = "/t.T/Who"
HOLD = "/t.T/Hold"

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(autouse=True)
def _clients_wait_for_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Connector.__module__}.TLS_SECONDS_MAX", 10.0)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path / "certificates")


class Problems(list[str]):
    """What was told."""


def of_server(given: TlsFiles, problems: list[str] | None = None) -> ServerCredentials:
    return ServerCredentials(given, Problems().append if problems is None else problems.append)


def of_client(given: TlsFiles, problems: list[str] | None = None) -> ClientCredentials:
    return ClientCredentials(given, Problems().append if problems is None else problems.append)


async def who(call: ServerCall) -> None:
    await call.read()
    await call.write(call.principal.encode() or b"nobody")


class DrpcServed:
    """A server of DRPC; its method tells whom the caller has proved to be."""

    def __init__(self, limits: ServerLimits = LIMITS) -> None:
        self.ended: list[str] = []
        self.server = DrpcServer(
            limits,
            status_of=lambda _: Status.UNAVAILABLE,
            on_failure=lambda error: None,
            on_ended=lambda _, reason: self.ended.append(reason),
        )
        self.server.methods.update({METHOD: who, HOLD: self.hold})
        self.port = self.server.bind("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"

    async def hold(self, call: ServerCall) -> None:
        """Answer each message; end when the caller sends no more."""
        while (message := await call.read()) is not None:
            await call.write(bytes(message))

    async def ask(self, credentials: ClientCredentials | None, address: str = "") -> str:
        """Call it by a new connection; return the answer, or nothing if there is none."""
        connector = Connector(
            CONNECTION, received_bytes_max=1 << 20, client_id="c", credentials=credentials
        )
        connection = await connector.connect(address or self.address)
        if connection is None:
            return ""
        try:
            async with asyncio.timeout(10):
                called = client.call(connection, METHOD, b"", connector.metadata_for(""))
                return (await called).decode()
        except (CallError, TimeoutError):
            return ""
        finally:
            connection.abort("asked")


class GrpcServed:
    """A server of gRPC that does the same."""

    def __init__(self, credentials: ServerCredentials) -> None:
        self.server = host.current.server((), ())
        handlers: dict[str, Any] = {
            "Who": grpc.unary_unary_rpc_method_handler(self.who),
            "Hold": grpc.stream_stream_rpc_method_handler(self.hold),
        }
        generic = grpc.method_handlers_generic_handler("t.T", handlers)
        self.server.add_generic_rpc_handlers([generic])
        self.port = host.current.listen(self.server, "127.0.0.1:0", credentials.for_grpc())
        self.address = f"127.0.0.1:{self.port}"

    async def who(self, request: bytes, context: Any) -> bytes:
        del request
        found = context.auth_context()
        uris = [uri.decode() for uri in found.get("peer_uri", ())]
        name = next(iter(found.get("x509_common_name", ())), b"").decode()
        return principal_of(uris, name).encode() or b"nobody"

    async def hold(self, requests: Any, context: Any) -> None:
        del requests
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)


async def ask_by_grpc(address: str, credentials: ClientCredentials | None) -> str:
    async with Channel(address, (), client_id="c", credentials=credentials) as channel:
        try:
            async with asyncio.timeout(5):
                return str((await channel.unary_unary(METHOD)(b"")).decode())
        except CallError:
            return ""


# --- Files ---------------------------------------------------------------------------------------


def test_a_key_of_another_certificate_is_refused_with_both_names(files: CertificateFiles) -> None:
    one, other = files.make("one", *NAMES), files.make("other", *NAMES)
    with pytest.raises(InvalidConfigError, match="the key is of another certificate") as caught:
        of_server(replace(one, key=other.key))
    assert one.certificate in caught.value.message
    assert other.key in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (b"nonsense", "not a certificate and its key in PEM form"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    files: CertificateFiles, content: bytes | None, message: str
) -> None:
    made = files.make("one", *NAMES)
    path = Path(made.certificate)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=message) as caught:
        of_server(made)
    assert made.certificate in caught.value.message


def test_authorities_that_are_none_are_refused(files: CertificateFiles) -> None:
    files.ca.write_bytes(b"nonsense")
    with pytest.raises(InvalidConfigError, match="no certificates in PEM form"):
        of_client(TlsFiles(ca=str(files.ca)))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(
    files: CertificateFiles,
) -> None:
    from cryptography.hazmat.primitives import serialization

    made = files.make("one", *NAMES)
    key = serialization.load_pem_private_key(Path(made.key).read_bytes(), password=None)
    Path(made.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(InvalidConfigError, match="the key is encrypted"):
        of_server(made)


def test_changed_files_that_do_not_fit_leave_the_last_good_ones_and_are_told_once(
    files: CertificateFiles,
) -> None:
    problems: list[str] = []
    made = files.make("one", *NAMES)
    credentials = of_server(made, problems)
    shown = credentials.certificate
    good = Path(made.certificate).read_bytes()
    files.make("one", *NAMES)
    new = Path(made.certificate).read_bytes()
    Path(made.certificate).write_bytes(good)  # The new key stays.
    assert not credentials.look()
    assert problems == [], "it may be about to be written"
    for _ in range(3):
        assert not credentials.look()
    assert credentials.certificate == shown
    assert [("the key is of another certificate" in problem) for problem in problems] == [True]
    Path(made.certificate).write_bytes(new)
    assert credentials.look()
    assert credentials.certificate == new
    assert not credentials.look()


def test_a_secret_of_kubernetes_is_read_again_when_its_link_is_set_to_another_folder(
    files: CertificateFiles, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()

    def publish(number: int) -> bytes:
        made = files.make("one", *NAMES)
        folder = secret / f"..{number}"
        folder.mkdir()
        Path(made.certificate).rename(folder / "tls.crt")
        Path(made.key).rename(folder / "tls.key")
        (secret / "..data_tmp").symlink_to(folder.name)
        (secret / "..data_tmp").rename(secret / "..data")
        return (folder / "tls.crt").read_bytes()

    first = publish(1)
    for name in ("tls.crt", "tls.key"):
        (secret / name).symlink_to(f"..data/{name}")
    credentials = of_server(
        TlsFiles(certificate=str(secret / "tls.crt"), key=str(secret / "tls.key"))
    )
    assert credentials.certificate == first
    second = publish(2)
    assert credentials.look()
    assert credentials.certificate == second


# --- Both ends -----------------------------------------------------------------------------------


@both_loops
def test_drpc_by_tls_names_nobody_who_shows_nothing_and_refuses_plain_text(
    files: CertificateFiles, run: Run
) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        served = DrpcServed()
        await served.server.serve(of_server(replace(broker, ca="")))
        trusting = of_client(TlsFiles(ca=broker.ca))
        assert await served.ask(trusting) == "nobody"
        assert await served.ask(trusting, f"localhost:{served.port}") == "nobody"
        assert await served.ask(None) == ""
        assert served.ended[-1] == "the handshake of TLS failed: it does not speak TLS"
        await served.server.stop(0)

    run(scenario())


@both_loops
def test_drpc_asks_for_certificates_of_its_authority_alone(
    files: CertificateFiles, tmp_path: Path, run: Run
) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        others = CertificateFiles(tmp_path / "others").make("b1", *NAMES, uri=BROKER)
        served = DrpcServed()
        await served.server.serve(of_server(broker))
        assert await served.ask(of_client(broker)) == BROKER
        assert await served.ask(of_client(files.make("spark"))) == "spark"
        assert await served.ask(of_client(TlsFiles(ca=broker.ca))) == ""
        assert served.ended[-1] == "the handshake of TLS failed: it shows no certificate"
        assert await served.ask(of_client(replace(others, ca=broker.ca))) == ""
        assert served.ended[-1].startswith("its certificate is refused: ")
        await served.server.stop(0)

    run(scenario())


@both_loops
def test_drpc_shows_and_trusts_what_the_files_hold_now(files: CertificateFiles, run: Run) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        server = of_server(broker)
        served = DrpcServed()
        await served.server.serve(server)
        before = of_client(broker)
        assert await served.ask(before) == BROKER
        # Another authority, and nobody trusts the earlier one any more.
        files.change_authority()
        files.make("b1", *NAMES, uri=BROKER)
        assert server.look()
        assert await served.ask(before) == "", "it trusts, and is of, the earlier authority"
        assert await served.ask(of_client(broker)) == BROKER
        await served.server.stop(0)

    run(scenario())


def test_grpc_shows_and_trusts_what_the_files_hold_now(files: CertificateFiles) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        server = of_server(broker)
        served = GrpcServed(server)
        await served.server.start()
        before = of_client(broker)
        assert await ask_by_grpc(served.address, before) == BROKER
        assert await ask_by_grpc(served.address, of_client(TlsFiles(ca=broker.ca))) == ""
        assert await ask_by_grpc(served.address, None) == ""
        files.change_authority()
        files.make("b1", *NAMES, uri=BROKER)
        assert server.look()
        assert await ask_by_grpc(served.address, before) == ""
        after = of_client(broker)
        assert await ask_by_grpc(served.address, after) == BROKER
        # Files that cannot be used change nothing.
        files.spoil("b1")
        assert not server.look()
        assert await ask_by_grpc(served.address, after) == BROKER
        await served.server.stop(0)

    asyncio.run(scenario())


def test_an_expired_certificate_is_loaded_and_clients_refuse_it(files: CertificateFiles) -> None:
    async def scenario() -> None:
        broker = replace(files.make("b1", *NAMES, days=-1), ca="")
        trusting = of_client(TlsFiles(ca=str(files.ca)))
        grpc_served, served = GrpcServed(of_server(broker)), DrpcServed()
        await grpc_served.server.start()
        await served.server.serve(of_server(broker))
        assert await ask_by_grpc(grpc_served.address, trusting) == ""
        assert await served.ask(trusting) == ""
        await served.server.stop(0)
        await grpc_served.server.stop(0)

    asyncio.run(scenario())


@both_loops
def test_tls_1_2_is_refused_by_drpc(files: CertificateFiles, run: Run) -> None:
    async def scenario() -> None:
        broker = replace(files.make("b1", *NAMES), ca="")
        served = DrpcServed()
        await served.server.serve(of_server(broker))
        context = of_client(TlsFiles(ca=str(files.ca))).context
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        await until(lambda: len(served.ended) == 1)
        assert served.ended == ["the handshake of TLS failed: it does not know TLS 1.3"]
        await served.server.stop(0)

    run(scenario())


@both_loops
def test_handshakes_that_stop_half_way_end_soon_and_are_few(
    files: CertificateFiles, run: Run
) -> None:
    async def scenario() -> None:
        bugs: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: bugs.append(found))
        broker = replace(files.make("b1", *NAMES), ca="")
        served = DrpcServed(replace(LIMITS, connections_max=8, handshake_ms_max=1000))
        await served.server.serve(of_server(broker))
        writers = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"\x16\x03\x01\x02")
            writers.append((reader, writer))
        # An honest client is served meanwhile.
        assert await served.ask(of_client(TlsFiles(ca=str(files.ca)))) == "nobody"
        async with asyncio.timeout(5):
            for reader, _ in writers:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        await until(lambda: len(served.ended) == len(writers))
        assert set(served.ended) == {"the handshake of TLS was not finished"}
        assert not served.server.connections
        for _, writer in writers:
            writer.close()
        await served.server.stop(0)
        assert bugs == []

    run(scenario())


# --- Connections that were made with other files -------------------------------------------------


def test_a_channel_of_grpc_is_made_anew_and_its_streams_finish(files: CertificateFiles) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        served = GrpcServed(of_server(broker))
        await served.server.start()
        credentials = of_client(files.make("one"))
        async with Channel(served.address, (), client_id="c", credentials=credentials) as channel:
            ask = channel.unary_unary(METHOD)
            assert await ask(b"") == b"one"
            stream = channel.stream(HOLD)
            drained = asyncio.Event()
            stream.on_draining = drained.set
            await stream.write(b"1")
            assert await stream.read() == b"1"
            files.make("two", file="one")
            async with asyncio.timeout(5):
                await drained.wait()  # By itself: nobody calls.
            assert stream.is_draining
            assert await ask(b"") == b"two"
            await stream.write(b"2")  # It goes on until its owner has ended it.
            assert await stream.read() == b"2"
            await stream.end_writing()
            assert await stream.read() is None
            await until(lambda: not channel._retired)
        await served.server.stop(0)

    asyncio.run(scenario())


@both_loops
def test_connections_of_drpc_retire_when_the_files_change(
    files: CertificateFiles, run: Run
) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        served = DrpcServed()
        await served.server.serve(of_server(broker))
        connector = Connector(
            CONNECTION,
            received_bytes_max=1 << 20,
            client_id="c",
            credentials=of_client(files.make("one")),
        )
        idle = await connector.connect(served.address)
        stream = await connector.stream(served.address, HOLD)
        assert idle is not None
        assert stream is not None
        files.make("one")
        await until(lambda: stream.is_draining and idle.is_closed)
        await stream.write(b"2")
        assert await stream.read() == b"2"
        await stream.end_writing()
        assert await stream.read() is None
        await served.server.stop(0)

    run(scenario())


def test_a_connection_that_has_shown_a_certificate_retires_at_its_age(
    files: CertificateFiles,
) -> None:
    async def scenario() -> None:
        broker = files.make("b1", *NAMES, uri=BROKER)
        made = files.make("one")
        for shown, retires in ((made, True), (TlsFiles(ca=made.ca), False)):
            credentials = ClientCredentials(shown, print, connection_seconds_max=0.5)
            connector = Connector(
                CONNECTION, received_bytes_max=1 << 20, client_id="c", credentials=credentials
            )
            asking = of_server(broker if retires else replace(broker, ca=""))
            served = DrpcServed()
            await served.server.serve(asking)
            connection = await connector.connect(served.address)
            assert connection is not None
            await asyncio.sleep(1.5)
            assert connection.is_closed is retires
            connection.abort("seen")
            await served.server.stop(0)

    asyncio.run(scenario())


def test_a_certificate_with_two_spiffe_ids_names_nobody() -> None:
    assert principal_of([BROKER], "name") == BROKER
    assert principal_of(["https://a"], "name") == "name"
    assert principal_of([BROKER, BROKER + "2"], "name") == ""


def test_a_common_name_that_is_like_a_spiffe_id_names_nobody() -> None:
    assert principal_of([], BROKER) == ""
    assert principal_of(["https://a"], BROKER) == ""


@both_loops
def test_nothing_is_sent_by_drpc_to_somebody_else_than_who_is_called(
    files: CertificateFiles, run: Run
) -> None:
    async def scenario() -> None:
        served = DrpcServed()
        await served.server.serve(of_server(replace(files.make("b1", *NAMES, uri=BROKER), ca="")))
        seen: list[str] = []

        def check(principal: str) -> None:
            seen.append(principal)
            if principal != wanted:
                raise PeerRefusedError("it is somebody else")

        async def greet(*_: object) -> None:
            seen.append("greeted")

        connector = Connector(
            CONNECTION,
            received_bytes_max=1 << 20,
            client_id="c",
            credentials=of_client(TlsFiles(ca=str(files.ca))),
        )
        wanted = BROKER
        connection = await connector.connect(served.address, greet, check)
        assert connection is not None
        connection.abort("asked")
        assert seen == [BROKER, "greeted"]
        wanted = BROKER.replace("b1", "b2")
        with pytest.raises(PeerRefusedError):
            await connector.connect(served.address, greet, check)
        with pytest.raises(PeerRefusedError):
            await connector.stream(served.address, METHOD, check=check)
        assert seen.count("greeted") == 1
        await served.server.stop(0)

    run(scenario())


def test_a_certificate_that_does_not_do_leaves_the_one_before(files: CertificateFiles) -> None:
    def check(certificate: bytes) -> None:
        if read(certificate).uris != (BROKER,):
            raise InvalidConfigError("it names another one")

    made = files.make("b1", *NAMES, uri=BROKER)
    problems: list[str] = []
    kept = ServerCredentials(made, problems.append, check)
    good = kept.certificate
    files.make("b1", *NAMES, uri=BROKER.replace("b1", "b2"))
    assert not kept.look()
    assert not kept.look()
    assert problems == ["it names another one"]
    assert kept.certificate == good
    files.make("b1", *NAMES, uri=BROKER)
    assert kept.look()
    with pytest.raises(InvalidConfigError):
        ClientCredentials(files.make("b2", *NAMES, uri="spiffe://x/y"), problems.append, check)
