"""The common settings of clients, and those of `Admin`.

Each client declares its settings once, as a dataclass (`...Config`): defaults, bounds and meanings
come from it to the client, to its docstring, and to docs/configuration.md. Users give them by
keyword. The `...Settings` beside it tells their names and types to type checkers, and nothing else.
"""

import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from millrace.client import events
from millrace.client._cluster.cluster import METADATA_TIMEOUT_MS_DEFAULT, Cluster
from millrace.client._threads.logs import Log
from millrace.core import settings
from millrace.core.errors import InvalidConfigError
from millrace.core.settings import NamedSetting, Unit, setting
from millrace.runtime.transport.credentials import TlsFiles
from millrace.runtime.transport.tokens import Token, TokenFile

if TYPE_CHECKING:
    from millrace.client.tracing import Tracing

Bytes = int | str
"""A number of bytes, or a text with a unit: `"64MiB"`."""
Milliseconds = int | str
"""A number of ms, or a text with a unit: `"30s"`."""

NONE: Final = "none"
"""Instead of the name of a file: there is none, whatever a variable says."""

_log = Log(__name__)

_Client = TypeVar("_Client", bound=type)


class Transport(StrEnum):
    """How records travel."""

    AUTO = "auto"
    GRPC = "grpc"


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings that all clients have."""

    client_id: str = setting(
        "millrace-python",
        "Name of the client in the brokers' logs: 1 to 255 visible ASCII characters, without "
        "spaces.",
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long one call may take. For as long the first one tries `bootstrap` again and again, "
        "unless that is on this machine; after three seconds a warning is logged.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    metadata_timeout_ms: int = setting(
        METADATA_TIMEOUT_MS_DEFAULT,
        "How long one broker may take to tell of topics, brokers and leaders, before another is "
        "asked.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    transport: Transport = setting(
        Transport.AUTO,
        "How records travel. `auto`: by DRPC where the broker offers it and is reached so, else by "
        "gRPC. `grpc`: by gRPC alone, which passes proxies for HTTP/2. Not in Kafka.",
    )
    close_timeout_ms: int = setting(
        10_000,
        "The longest that `close()` takes. A consumer commits and leaves its group in this time; "
        "if it could not leave, its session has to end before others get its partitions. Not in "
        "Kafka.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )

    tls_ca_file: str = setting(
        "",
        "PEM file of the authorities that brokers' certificates are of; `system`: those that this "
        "machine trusts. It makes the client speak TLS. Empty: the environment variable "
        "`MILLRACE_TLS_CA_FILE`, or else plain text. `none`: plain text, whatever the variable "
        "says. The files are read again when they change: see [TLS](security.md). In Kafka: "
        "`ssl.truststore.location`.",
    )
    tls_certificate_file: str = setting(
        "",
        "PEM file of this client's certificate, for brokers that ask for one. Empty: "
        "`MILLRACE_TLS_CERTIFICATE_FILE`, or else none; `none` likewise. In Kafka: "
        "`ssl.keystore.location`.",
    )
    tls_key_file: str = setting(
        "",
        "PEM file of the certificate's key, without a password. Empty: `MILLRACE_TLS_KEY_FILE`.",
    )

    token_file: str = setting(
        "",
        "File with the token that proves who this client is; it goes with each call, over TLS or "
        "on this machine alone. It is read again when it changes. Empty: the environment variable "
        "`MILLRACE_TOKEN_FILE`, or else no token. `none`: no token, whatever the variable says, as "
        "for another cluster. See [security](security.md). In Kafka: `sasl.jaas.config`.",
    )

    token: str = setting(
        "",
        "The token itself, instead of a file with it: for programs that call in the name of "
        "somebody else, who gave it to them. It stays the same as long as the client lives. Not in "
        "Kafka.",
        is_secret=True,
    )

    @property
    def _tls_files(self) -> TlsFiles | None:
        """Where the credentials are; None: in plain text.

        Raises:
            InvalidConfigError: something is missing.
        """
        ca = self._file("tls_ca_file")
        certificate, key = self._file("tls_certificate_file"), self._file("tls_key_file")
        if ca == NONE:  # Then these variables are for another cluster, too.
            ca, certificate, key = "", self.tls_certificate_file, self.tls_key_file
        if NONE in (certificate, key):
            certificate = key = ""
        if bool(certificate) != bool(key):
            raise InvalidConfigError(
                "tls_certificate_file and tls_key_file: give both, or none of them"
            )
        if certificate and not ca:
            raise InvalidConfigError("tls_ca_file: it must be set, as tls_certificate_file is")
        return TlsFiles(ca, certificate, key) if ca else None

    @property
    def _chosen_token(self) -> Token | None:
        """What proves who this client is; None: nothing.

        Raises:
            InvalidConfigError: the settings do not fit, or the token is none.
        """
        if self.token:
            if self.token_file:
                raise InvalidConfigError("token and token_file: give one of them")
            return Token(self.token)
        chosen = self._file("token_file")
        return None if chosen in ("", NONE) else TokenFile(chosen, _tell_problem)

    def _file(self, name: str) -> str:
        """Return what a setting says, or else its variable."""
        return getattr(self, name) or os.environ.get(f"MILLRACE_{name.upper()}", "")

    def new_cluster(self, bootstrap: str | Sequence[str]) -> Cluster:
        """Return the cluster of a client.

        Raises:
            InvalidConfigError: `bootstrap`, `client_id` or a file is not valid.
        """
        return Cluster(
            bootstrap,
            client_id=self.client_id,
            timeout_ms=self.request_timeout_ms,
            metadata_timeout_ms=self.metadata_timeout_ms,
            uses_drpc=self.transport is Transport.AUTO,
            tls=self._tls_files,
            token=self._chosen_token,
        )


class ClientSettings(TypedDict, total=False):
    """See `ClientConfig`."""

    client_id: str
    request_timeout_ms: Milliseconds
    metadata_timeout_ms: Milliseconds
    transport: str
    close_timeout_ms: Milliseconds
    tls_ca_file: str
    tls_certificate_file: str
    tls_key_file: str
    token_file: str
    token: str


@dataclass(frozen=True, kw_only=True)
class TracedConfig(ClientConfig):
    """Settings of clients that send or read records."""

    tracing: bool = setting(
        False,
        "Spans of OpenTelemetry, and the context of the trace in the headers of records. It needs "
        "`pip install opentelemetry-api`: see [tracing](tracing.md). Not in Kafka.",
    )

    def new_tracing(self, group: str = "") -> "Tracing | None":
        """Return the spans of a client, if they are on.

        Raises:
            InvalidConfigError: OpenTelemetry is not installed.
        """
        if not self.tracing:
            return None
        try:
            # Only now: programs without tracing need no OpenTelemetry.
            from millrace.client.tracing import Tracing
        except ImportError as error:
            raise InvalidConfigError(
                f"tracing = true: OpenTelemetry is not installed ({error}): pip install "
                "opentelemetry-api"
            ) from error
        return Tracing(self.client_id, group)


class TracedSettings(ClientSettings, total=False):
    """See `TracedConfig`."""

    tracing: bool


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of `Admin` and `SyncAdmin`."""


class AdminSettings(ClientSettings, total=False):
    """See `AdminConfig`."""


def function(value: object) -> Any:
    """Return a function that a user gave as a setting.

    Raises:
        ValueError: the value cannot be called.
    """
    if not callable(value):
        raise ValueError("must be a function")
    return value


def documents(config: type) -> Callable[[_Client], _Client]:
    """Put the settings of a class into the docstring of a client, in the place of `{settings}`."""

    def put(client: _Client) -> _Client:
        entries = "\n".join(map(_entry, settings.settings_of(config).values()))
        if client.__doc__ is not None:  # `python -OO` leaves none.
            # From Python 3.13 on a docstring has no indentation of its own; so has none here.
            client.__doc__ = inspect.cleandoc(client.__doc__).replace("    {settings}", entries)
        return client

    return put


def _entry(named: NamedSetting) -> str:
    meaning, default = named.description.documentation, settings.default_text(named)
    return textwrap.fill(
        f"{named.name}: {meaning} Default: {default}.",
        width=96,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
    )


def _tell_problem(problem: str) -> None:
    events.TOKEN_FILE_UNUSABLE.log(_log, error=problem)
