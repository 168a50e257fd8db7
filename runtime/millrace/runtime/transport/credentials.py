"""Certificates, keys and authorities out of files, for both ends of gRPC and of DRPC.

One place makes them all. The files are looked at again and again, and read when they have changed,
as the Secrets of Kubernetes do, whose folder is a link that is set to another one. What cannot be
used, such as a key that is not that of the certificate, leaves the last good ones in place.

A server offers each new connection what the files held last: gRPC asks for it at each handshake,
and DRPC's connections are each given the context of their moment. The calling end of gRPC cannot do
that with a channel (grpc#41779): connections that were made with other files are asked to retire,
and others are made for the calls that follow.

DRPC has TLS 1.3 alone, and no tickets: who resumes an earlier session shows no certificate, and one
that is no longer trusted would still be good for it. gRPC's servers cannot refuse TLS 1.2
(grpc#43074).
"""

import asyncio
import math
import os
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

import grpc

from millrace.core.errors import InvalidConfigError
from millrace.runtime import host
from millrace.runtime.file_stamp import FileStamp, file_stamp

SYSTEM: Final = "system"
"""Instead of the name of a file: the authorities that the machine trusts."""
SPIFFE: Final = "spiffe://"
CONNECTION_SECONDS_MAX: Final = 45 * 60.0
"""How old a connection gets whose caller has shown a certificate; servers end it at an hour."""
LOOK_SECONDS: Final = 1.0
"""How often files are looked at."""
_FILE_BYTES_MAX: Final = 1 << 20
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the authorities that they trust: Debian, Red Hat, Alpine and macOS."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one end of connections has its credentials; an empty name: there is none.

    Attributes:
        ca: the authorities that the other end's certificate has to be of; or `SYSTEM`.
        certificate: what this end shows, with those between it and its authority.
        key: of the certificate.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""


class _Contents(NamedTuple):
    """What files held when they could be used.

    Attributes:
        stamps: of the files.
        context: for DRPC.
    """

    stamps: tuple[FileStamp, ...]
    ca: bytes | None
    certificate: bytes | None
    key: bytes | None
    context: ssl.SSLContext


class _Credentials:
    """The credentials of one end.

    Args:
        files: where they are.
        on_problem: called with each reason why files that have changed are not used, at the second
            look that finds it.
        check: of each certificate to be shown, as PEM; raises `InvalidConfigError` if it does not
            do.

    Raises:
        InvalidConfigError: the files cannot be used.
    """

    def __init__(
        self,
        files: TlsFiles,
        on_problem: Callable[[str], object],
        check: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self._files = files
        self._on_problem = on_problem
        self._check = check
        self._problem = ""  # Of the last look.
        self._is_told = False
        self._contents = self._read()

    @property
    def certificate(self) -> bytes:
        """The certificates that this end shows, as PEM; empty: none."""
        return self._contents.certificate or b""

    @property
    def context(self) -> ssl.SSLContext:
        """What a connection of DRPC that begins now is made with."""
        return self._contents.context

    def look(self) -> bool:
        """Read the files if they have changed; return whether other ones count from now on."""
        try:
            if self._look() == self._contents.stamps:
                self._problem = ""
                return False
            self._contents = self._read()
        except InvalidConfigError as error:
            # Not at once: a certificate is often written a moment before its key.
            if error.message != self._problem:
                self._problem, self._is_told = error.message, False
            elif not self._is_told:
                self._is_told = True
                self._on_problem(error.message)
            return False
        self._problem = ""
        return True

    def _new_context(self, ca: str | None) -> ssl.SSLContext:
        raise NotImplementedError

    @property
    def _ca(self) -> Path | None:
        if self._files.ca != SYSTEM:
            return Path(self._files.ca) if self._files.ca else None
        return _system_bundle()

    @property
    def _paths(self) -> list[Path]:
        given = (self._ca, self._files.certificate, self._files.key)
        return [Path(path) for path in given if path]

    def _look(self) -> tuple[FileStamp, ...]:
        """Return what differs when a file has changed."""
        found = []
        for path in self._paths:
            try:
                found.append(file_stamp(path))
            except OSError as error:
                raise InvalidConfigError(f"{path}: {error.strerror}") from error
        return tuple(found)

    def _read(self) -> _Contents:
        stamps = self._look()
        certificate, key = self._files.certificate, self._files.key
        ca = None if self._ca is None else _read(self._ca)
        shown = _read(certificate) if certificate else None
        secret = _read(key) if key else None
        try:
            context = self._new_context(None if ca is None else ca.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidConfigError(f"{self._ca}: no certificates in PEM form: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # As gRPC does: an authority that is itself of another one need not bring that one along.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if certificate:
            try:
                context.load_cert_chain(certificate, key, password=_no_password)
            except (OSError, ValueError) as error:
                raise InvalidConfigError(
                    f"{certificate} with the key {key}: {_reason(error)}"
                ) from error
        if shown is not None:
            self._check(shown)
        if self._look() != stamps:
            raise InvalidConfigError(f"{certificate or self._ca}: it changes while it is read")
        return _Contents(stamps, ca, shown, secret, context)


class ServerCredentials(_Credentials):
    """What a listener shows, and what it asks of its callers.

    Attributes:
        requires_certificates: whether callers have to show one.
    """

    def __init__(
        self,
        files: TlsFiles,
        on_problem: Callable[[str], object],
        check: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self.requires_certificates = bool(files.ca)
        super().__init__(files, on_problem, check)

    def _new_context(self, ca: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        if ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=ca)
        return context

    def for_grpc(self) -> grpc.ServerCredentials:
        """Return the credentials of one port."""
        offered = self._contents

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Return what counts since the last handshake; None: the same. On gRPC's threads."""
            nonlocal offered
            if (contents := self._contents) is offered:
                return None
            offered = contents
            return _configuration(contents)

        # The stubs do not know that nothing may be returned.
        fetcher = cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch)
        return grpc.dynamic_ssl_server_credentials(
            _configuration(offered),
            fetcher,
            require_client_authentication=self.requires_certificates,
        )


class Retiring(Protocol):
    """A connection that was made with what the files held then."""

    def retire(self) -> None:
        """End in good order: the calls that follow get another connection."""


class ClientCredentials(_Credentials):
    """What a calling end trusts, and what it shows. It belongs to one event loop.

    Args:
        files, on_problem, check: as for all.
        connection_seconds_max: a connection retires at this age if this end shows a certificate.
    """

    def __init__(
        self,
        files: TlsFiles,
        on_problem: Callable[[str], object],
        check: Callable[[bytes], object] = lambda _: None,
        *,
        connection_seconds_max: float = CONNECTION_SECONDS_MAX,
    ) -> None:
        self._connection_seconds_max = connection_seconds_max if files.certificate else math.inf
        self._connections: WeakKeyDictionary[Retiring, float] = WeakKeyDictionary()
        self._looking: asyncio.TimerHandle | None = None
        self._looked_at = host.monotonic_s()
        super().__init__(files, on_problem, check)

    def _new_context(self, ca: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=ca)
        return context

    def for_grpc(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel that is made now."""
        contents = self._contents
        return grpc.ssl_channel_credentials(contents.ca, contents.key, contents.certificate)

    def join(self, connection: Retiring) -> None:
        """Have a connection retire when other credentials count, or when it is old."""
        self._connections[connection] = host.monotonic_s()
        if self._looking is None:
            self._look_later()

    def close(self) -> None:
        """Look at the files no more: no connection is left."""
        self._connections.clear()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def refresh(self) -> None:
        """Look at the files, unless that was done a moment ago."""
        now = host.monotonic_s()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        has_changed = self.look()
        for connection, made_at in list(self._connections.items()):
            if has_changed or now - made_at >= self._connection_seconds_max:
                del self._connections[connection]
                connection.retire()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._looking = None
        self.refresh()
        if self._connections:
            self._look_later()


def _configuration(contents: _Contents) -> grpc.ServerCertificateConfiguration:
    assert contents.key is not None
    assert contents.certificate is not None
    return grpc.ssl_server_certificate_configuration(
        [(contents.key, contents.certificate)], root_certificates=contents.ca
    )


def _read(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"{path}: {error.strerror}") from error
    if not content.strip():
        raise InvalidConfigError(f"{path}: the file is empty")
    if len(content) > _FILE_BYTES_MAX:
        raise InvalidConfigError(f"{path}: the file has more than {_FILE_BYTES_MAX} bytes")
    return content


def _no_password() -> str:
    raise ValueError("the key is encrypted: store it without a password, for its owner's eyes only")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is of another certificate"
        return f"not a certificate and its key in PEM form ({error.reason or error})"
    return str(error)


def _system_bundle() -> Path | None:
    """Return the file of the authorities that the machine trusts; None: the libraries' own."""
    found = ssl.get_default_verify_paths().cafile
    names = [os.environ.get("SSL_CERT_FILE", ""), found or "", *_BUNDLES]
    return next((Path(name) for name in names if name and Path(name).is_file()), None)


def principal_of(uris: Iterable[str], common_name: str) -> str:
    """Return whom a certificate names that was verified: its SPIFFE id, or else its common name.

    Nobody (empty) has a certificate with two SPIFFE ids, as SPIFFE's X.509-SVID demands, with
    characters that nobody sees, or with a SPIFFE id as its common name: authorities that check
    URIs, as they name brokers, may sign any common name (rule G2).
    """
    found = [uri for uri in uris if uri.startswith(SPIFFE)]
    if not found and not common_name.startswith(SPIFFE):
        found = [common_name]
    return found[0] if len(found) == 1 and found[0].isprintable() else ""


def principal_of_connection(tls: ssl.SSLObject | None) -> str:
    """Return whom the other end of a connection of DRPC has proved to be; empty: nobody."""
    found: Any = None if tls is None else tls.getpeercert()
    if not found:
        return ""
    names = [value for (kind, value), *_ in found.get("subject", ()) if kind == "commonName"]
    uris = [value for kind, value in found.get("subjectAltName", ()) if kind == "URI"]
    return principal_of(uris, names[0] if names else "")
