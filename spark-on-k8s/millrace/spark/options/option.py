"""The common parts of the options of readers and writers.

The options themselves are in `source_options` and `sink_options`, declared as all settings are
(`millrace.core.settings`); the `scope` of one is its `Use`.
"""

from enum import Flag, auto
from typing import Any, Final, NamedTuple, Protocol

from millrace.core.addresses import parse_addresses
from millrace.core.errors import InvalidTopicError
from millrace.core.settings import setting
from millrace.core.topics import DEFAULT_NAMESPACE, parse_topic_name


class Use(Flag):
    """What kind of query an option is for."""

    BATCH = auto()
    STREAM = auto()
    READ = BATCH | STREAM


def brokers_option() -> Any:
    """Declare the option that names brokers."""
    return setting(
        "", "`host:port` of brokers, separated by commas.",
        name="bootstrap.servers", aliases=("kafka.bootstrap.servers",), parse=_brokers,
        allowed="addresses", default_text="(required)",
    )  # fmt: skip


def token_file_option() -> Any:
    """Declare the option that names the file of a token."""
    return setting(
        "", "File with the token that tells brokers who reads or writes, on the driver and on each "
        "executor; it is read again when it changes. Not in Kafka.",
        name="tokenFile", allowed="a path", default_text="`MILLRACE_TOKEN_FILE`, else none",
    )  # fmt: skip


class CredentialFiles(NamedTuple):
    """The files of a query's credentials, by the names of the clients' settings; empty: none."""

    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    token_file: str = ""


NO_CREDENTIALS: Final = CredentialFiles()


class CredentialOptions(Protocol):
    """Options that name them."""

    @property
    def tls_ca_file(self) -> str: ...
    @property
    def tls_certificate_file(self) -> str: ...
    @property
    def tls_key_file(self) -> str: ...
    @property
    def token_file(self) -> str: ...


def credential_files(options: CredentialOptions) -> CredentialFiles:
    """Return the files of a query's credentials."""
    return CredentialFiles(
        options.tls_ca_file,
        options.tls_certificate_file,
        options.tls_key_file,
        options.token_file,
    )


def tls_ca_file_option() -> Any:
    """Declare the option that makes a query speak TLS."""
    return setting(
        "", "PEM file of the authorities of brokers' certificates, at that place on the driver and "
        "on each executor; `system`: those that the machines trust. Connections are then by TLS: "
        "see [TLS](security.md#a-client-with-tls).",
        name="tlsCaFile", allowed="a path", default_text="`MILLRACE_TLS_CA_FILE`, else plain text",
    )  # fmt: skip


def tls_certificate_file_option() -> Any:
    """Declare the option that names a certificate."""
    return setting(
        "", "PEM file of the query's certificate, for brokers that ask for one.",
        name="tlsCertificateFile", allowed="a path",
        default_text="`MILLRACE_TLS_CERTIFICATE_FILE`, else none",
    )  # fmt: skip


def tls_key_file_option() -> Any:
    """Declare the option that names the certificate's key."""
    return setting(
        "", "PEM file of the certificate's key.",
        name="tlsKeyFile", allowed="a path", default_text="`MILLRACE_TLS_KEY_FILE`, else none",
    )  # fmt: skip


def namespace_option() -> Any:
    """Declare the option of a namespace."""
    return setting(
        DEFAULT_NAMESPACE,
        "Of topics that are named without one, wherever options name topics. Not in Kafka.",
        parse=_namespace, allowed="a namespace",
        default_text="`MILLRACE_NAMESPACE` of the driver, else default",
    )  # fmt: skip


def _brokers(text: str) -> str:
    parse_addresses(text)
    return text


def _namespace(text: str) -> str:
    try:
        return parse_topic_name("topic", text).namespace
    except InvalidTopicError as error:
        raise ValueError(
            "must be a Kubernetes namespace: lower case letters, digits and hyphens"
        ) from error
