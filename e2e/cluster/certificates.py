"""Keys and certificates of a cluster, by openssl; and the kubeconfigs that hold them.

Certificates have what RFC 5280 wants of them: from 3.13 on, Python accepts no others.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run

_DAYS = "365"


@dataclass(frozen=True)
class Certificates:
    """A certificate authority and the certificates that it signed, in a folder."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.path("ca.crt")

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / name

    def make_authority(self) -> None:
        """Create the authority, and the key that signs service accounts' tokens, unless there."""
        if self.authority.exists():
            return
        self.folder.mkdir(parents=True)
        self._make_key("service-accounts")
        public = ("-pubout", "-out", self.path("service-accounts.pub"))
        run("openssl", "ec", "-in", self.path("service-accounts.key"), *public)
        self._make_key("ca")
        run(
            *("openssl", "req", "-x509", "-new", "-key", self.path("ca.key")),
            *("-subj", "/CN=ca", "-days", _DAYS, "-out", self.authority),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def sign(self, name: str, user: str, group: str = "", also: tuple[str, ...] = ()) -> None:
        """Create a key and a certificate, unless they exist.

        Args:
            name: of the two files.
            user: the subject.
            group: the subject's group.
            also: names and addresses for which it is valid, such as `IP:127.0.0.1`.
        """
        if self.path(f"{name}.crt").exists():
            return
        self._make_key(name)
        request = self.path(f"{name}.csr")
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        run(
            *("openssl", "req", "-new", "-key", self.path(f"{name}.key")),
            *("-subj", subject, "-out", request),
        )
        extensions = self.path(f"{name}.ext")
        names = ",".join(also or (f"DNS:{name}",))
        extensions.write_text(
            f"subjectAltName={names}\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
            "authorityKeyIdentifier=keyid\n"
        )
        run(
            *("openssl", "x509", "-req", "-in", request, "-days", _DAYS, "-CAcreateserial"),
            *("-CA", self.authority, "-CAkey", self.path("ca.key")),
            *("-extfile", extensions, "-out", self.path(f"{name}.crt")),
        )

    def write_kubeconfig(self, path: Path, name: str, server: str) -> None:
        """Write a kubeconfig that needs no other file; JSON is YAML.

        Args:
            name: of the certificate, as for `sign`.
            server: the API server's URL.
        """

        def data(file: str) -> str:
            return base64.b64encode(self.path(file).read_bytes()).decode()

        cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
        user = {
            "client-certificate-data": data(f"{name}.crt"),
            "client-key-data": data(f"{name}.key"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "millrace",
            "clusters": [{"name": "millrace", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "millrace", "context": {"cluster": "millrace", "user": name}}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))

    def _make_key(self, name: str) -> None:
        path = self.path(f"{name}.key")
        path.touch(mode=0o600)
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
