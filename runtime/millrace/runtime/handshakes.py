"""Takes connections whose first bytes are a handshake of TLS, with bounds on those under way.

A handshake has a few seconds, and a port has a bound of handshakes under way. When the bound is
reached and another connection comes, the oldest handshake ends of the host that has most. So a host
that opens connections and says nothing hinders itself first. An honest handshake takes
milliseconds, and is over before its turn comes.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from millrace.core.addresses import host_port

_PAUSE_SECONDS: Final = 1.0
"""After an accept that failed, as for want of descriptors; asyncio waits as long."""
TOO_OFTEN: Final = "too many connections come from its address at a time"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a port takes connections of TLS.

    Attributes:
        context: returns what a connection that begins now gets.
        handshake_seconds_max: for one.
        handshakes_max: under way at a time.
        on_failed: called with `host:port` and the reason when one fails.
        delay_ms: returns for how long one of a host waits before it begins; None: it is refused.
    """

    context: Callable[[], ssl.SSLContext]
    handshake_seconds_max: float
    handshakes_max: int
    on_failed: Callable[[str, str], None]
    delay_ms: Callable[[str], float | None] = lambda host: 0.0


class TlsAcceptor:
    """Takes the connections of a port until it is closed.

    Args:
        listening: the port.
        factory: makes what takes the bytes of a connection, once its handshake is over.
    """

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BufferedProtocol],
        tls: ServerTls,
    ) -> None:
        self._listening = listening
        self._factory = factory
        self._tls = tls
        self._under_way: dict[asyncio.Task[None], tuple[str, socket.socket]] = {}
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Take no more connections; those that are there stay."""
        self._accepting.cancel()
        for _, connected in self._under_way.values():
            _shut_down(connected)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, address = await loop.sock_accept(self._listening)
            except (ConnectionError, TimeoutError):
                continue  # It has gone again.
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            connected.setblocking(False)
            delay_ms = self._tls.delay_ms(str(address[0]))
            if delay_ms is None:
                connected.close()
                self._tls.on_failed(host_port(str(address[0]), address[1]), TOO_OFTEN)
                continue
            if len(self._under_way) >= self._tls.handshakes_max:
                self._make_room()
            task = loop.create_task(self._begin(connected, address, delay_ms / 1000))
            self._under_way[task] = (str(address[0]), connected)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._under_way.pop(task, None)  # It may have made room.

    def _make_room(self) -> None:
        most = Counter(name for name, _ in self._under_way.values()).most_common(1)[0][0]
        oldest = next(one for one, (name, _) in self._under_way.items() if name == most)
        _shut_down(self._under_way.pop(oldest)[1])

    async def _begin(self, connected: socket.socket, address: Any, delay_s: float) -> None:
        try:
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                connected,
                ssl=self._tls.context(),
                ssl_handshake_timeout=self._tls.handshake_seconds_max,
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: it has gone before it began.
            connected.close()
            self._tls.on_failed(host_port(str(address[0]), address[1]), _reason(error))


def _shut_down(connected: socket.socket) -> None:
    """Have the other end, and this one's transport, see the end of a connection."""
    with contextlib.suppress(OSError):  # It is over.
        connected.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the handshake of TLS failed: {_MEANINGS.get(error.reason or '', error.reason)}"
    return "the handshake of TLS was not finished"


_MEANINGS: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it does not know TLS 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this broker's certificate expired",
}
