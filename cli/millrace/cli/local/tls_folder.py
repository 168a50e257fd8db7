"""The folder of `millrace up --tls`: an authority, and a certificate for each broker.

`up` makes what is missing at the start. Every hour it looks at the folder, and renews a certificate
before it ends; brokers read the file again. It also renews the authority, long before any
certificate of it ends. The earlier authority stays beside the new one in `ca.crt`, which brokers
and clients read again, too.

A folder without `ca.key` is somebody else's: it is used as it is, and nothing is made in it.
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import say
from millrace.cli.files import certificate_files
from millrace.cli.files.certificate_files import AUTHORITY, AUTHORITY_DAYS, CERTIFICATE_DAYS
from millrace.core.broker_names import BrokerName
from millrace.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from millrace.runtime.certificates import Certificate

_TRUST_DOMAIN: Final = "millrace"
_NAMESPACE: Final = "default"
_CLUSTER: Final = "millrace"
_DAY_S: Final = 86_400.0
_RENEW_DAYS: Final = 30
"""A certificate is renewed so many days before it ends."""
_RENEW_AUTHORITY_DAYS: Final = 90
"""Likewise, an authority: some time before the certificates that it has signed, so that the next
one is trusted everywhere before it signs."""
_LOOK_S: Final = 3600.0
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
_WILDCARDS: Final = ("0.0.0.0", "::")


class TlsFolder:
    """Certificates for brokers of this machine.

    Args:
        path: of the folder; made when it is not there.
        brokers: their names.
        host: where they listen.

    Raises:
        Failure: a certificate is missing, and there is no authority that could sign it.
        InvalidConfigError: a file has something else in it.
    """

    def __init__(self, path: Path, brokers: Sequence[str], host: str) -> None:
        self._path = path.absolute()
        self._brokers = brokers
        named = () if host in _WILDCARDS else (host,)
        self._hosts = tuple(dict.fromkeys((*_THIS_MACHINE, socket.gethostname(), *named)))
        self.ca_file = certificate_files.paths(self._path, AUTHORITY)[0]
        self.look()

    def listeners(self, broker: str) -> dict[str, dict[str, str]]:
        """Return what a broker's listeners are told, by their names."""
        certificate, key = certificate_files.paths(self._path, broker)
        shown = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
        return {"clients": shown, "replicas": shown | {"tls_client_ca_file": str(self.ca_file)}}

    @contextmanager
    def looked_after(self) -> Iterator[None]:
        """Renew what ends soon, as long as this lasts."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(_LOOK_S):
                try:
                    self.look()
                except (OSError, InvalidConfigError, Failure) as error:
                    say(f"certificates in {self._path} are not renewed: {error}")

        thread = threading.Thread(target=run, name="certificates", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def look(self) -> None:
        """Make what is missing or ends soon; see `__init__` for errors."""
        certificate, key = certificate_files.paths(self._path, AUTHORITY)
        if not certificate.exists() and not key.exists():
            self._make_authority(trusted=b"")
        elif key.exists():
            self._renew_authority()
        for broker in self._brokers:
            if self._has_good(broker):
                continue
            if key.exists():
                self._make(broker)
            elif not certificate_files.paths(self._path, broker)[0].exists():
                raise Failure(
                    f"{self._path} has no certificate of {broker}, and no {key.name} to sign one",
                    "name another folder, or make it by your authority: `millrace certificate "
                    "broker --help` says what it needs",
                    exit_code=ExitCode.NOT_FOUND,
                )

    def _make_authority(self, trusted: bytes) -> None:
        """Make an authority.

        Args:
            trusted: authorities that are trusted beside it, in PEM form.
        """
        from millrace.runtime.certificates import Issued, new_authority

        made = new_authority("millrace up", days=AUTHORITY_DAYS)
        certificate_files.store(self._path, AUTHORITY, Issued(made.certificate + trusted, made.key))

    def _renew_authority(self) -> None:
        from millrace.runtime.certificates import each_of, read

        trusted = self.ca_file.read_bytes()
        if _days_left(read(trusted)) < _RENEW_AUTHORITY_DAYS:
            count = [each for each in each_of(trusted) if _days_left(read(each)) > 0]
            self._make_authority(b"".join(count))

    def _make(self, broker: str) -> None:
        from millrace.runtime.certificates import Names, issue, read

        authority = certificate_files.load(self._path, AUTHORITY)
        names = Names(common=broker, hosts=self._hosts, uri=_uri(broker))
        days = min(CERTIFICATE_DAYS, _days_left(read(authority.certificate)))
        certificate_files.store(self._path, broker, issue(authority, names, days=days))

    def _has_good(self, broker: str) -> bool:
        """Return whether a broker's certificate is its own, and does for a while."""
        from millrace.runtime.certificates import is_pair, read

        try:
            pair = certificate_files.load(self._path, broker)
            found = read(pair.certificate)
        except (OSError, InvalidConfigError):
            return False
        return (
            is_pair(pair)
            and found.is_of(self.ca_file.read_bytes())
            and found.uris == (_uri(broker),)
            and found.hosts.issuperset(self._hosts)
            and _days_left(found) > _RENEW_DAYS
        )


def _uri(broker: str) -> str:
    return BrokerName(_TRUST_DOMAIN, _NAMESPACE, _CLUSTER, broker).uri


def _days_left(certificate: "Certificate") -> float:
    return (certificate.ends - time.time()) / _DAY_S
