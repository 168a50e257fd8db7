"""Why a connection to a server failed, where TLS is why: in words, with what to do.

gRPC tells little of it (`Socket closed`). So the server is asked once more, by a handshake of our
own, which nothing else follows.
"""

import asyncio
import ssl
from typing import Any, Final

from millrace.core.addresses import host_of
from millrace.runtime import host
from millrace.runtime.transport.calls import CallError, Status
from millrace.runtime.transport.credentials import ClientCredentials

_SECONDS_MAX: Final = 2.0
_CLOSED: Final = ("Socket closed", "reset by peer", "closed", "EOF")
"""What gRPC says when a server of TLS hears plain text."""
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_OTHER_NAME: Final = (62, 64)
_UNKNOWN_AUTHORITY: Final = (2, 18, 19, 20, 21)
"""Codes of OpenSSL's `X509_V_ERR_...`."""


async def tls_problem(error: CallError, address: str, credentials: ClientCredentials | None) -> str:
    """Return what is wrong with TLS at an address, and what to do; empty: nothing is known.

    Args:
        error: with which a call failed.
        address: `host:port` that it went to.
        credentials: that it had; None: it was in plain text.
    """
    if error.status is not Status.UNAVAILABLE:
        return ""
    if credentials is None and not any(words in error.details for words in _CLOSED):
        return ""
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            if credentials is None:
                return await _of_plain_text(address)
            return await _of_tls(address, credentials)
    except (OSError, TimeoutError):
        return ""


async def _of_plain_text(address: str) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    probe: _Probe = await host.current.connect(address, _Probe, context)
    probe.close()
    return (
        "it speaks TLS, and this client does not: set tls_ca_file (MILLRACE_TLS_CA_FILE) to the "
        "file of its authority"
    )


async def _of_tls(address: str, credentials: ClientCredentials) -> str:
    try:
        probe: _Probe = await host.current.connect(address, _Probe, credentials.context)
    except ssl.SSLCertVerificationError as error:
        return _meaning_of(error, host_of(address))
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return (
                "it does not speak TLS: leave tls_ca_file (MILLRACE_TLS_CA_FILE) away, or give "
                "the listener a certificate"
            )
        return f"the handshake of TLS failed: {error.reason}"
    try:
        lost = await probe.answer
    finally:
        probe.close()
    if lost is None:
        return ""
    reason = getattr(lost, "reason", "") or ""
    if "UNKNOWN_CA" in reason or "CERTIFICATE_UNKNOWN" in reason or "BAD_CERTIFICATE" in reason:
        return "it does not accept tls_certificate_file: its authority is not that of the broker"
    if "EXPIRED" in reason:
        return "tls_certificate_file has expired: renew it"
    if credentials.certificate:
        return "it closed the connection: tls_certificate_file may not be of its authority"
    return (
        "it asks for a certificate: set tls_certificate_file and tls_key_file, or use a listener "
        "that asks for none"
    )


def _meaning_of(error: ssl.SSLCertVerificationError, name: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired: renew it; the broker needs no restart"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both machines"
    if code in _OTHER_NAME:
        return (
            f"its certificate is not for {name!r}: connect by a name that it has, or renew it "
            "with this one"
        )
    if code in _UNKNOWN_AUTHORITY:
        return "its certificate is of an authority that is not in tls_ca_file"
    return f"its certificate is refused: {error.verify_message}"


class _Probe(asyncio.BufferedProtocol):
    """Waits for the first word of a server of gRPC, which greets, or for the end.

    Attributes:
        answer: None once something came; else why the connection was lost.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(256)
        self.answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        del nbytes
        self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(exc or ConnectionError("the server closed the connection"))

    def _settle(self, lost: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_result(lost)

    def close(self) -> None:
        """End the connection at once."""
        self._transport.abort()
