"""An authority, and the files of certificates that it signs."""

from pathlib import Path

from millrace.runtime.certificates import Names, issue, new_authority
from millrace.runtime.transport.credentials import TlsFiles


class CertificateFiles:
    """A folder of certificates.

    Args:
        folder: made if it is missing.
        name: of the authority.

    Attributes:
        authority: signs.
        ca: the file of its certificate.
    """

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.crt"
        self.change_authority(name)

    def change_authority(self, name: str = "another authority") -> bytes:
        """Have another authority sign from now on; return the certificate of the last one."""
        last = self.ca.read_bytes() if self.ca.exists() else b""
        self.authority = new_authority(name, days=1)
        self.ca.write_bytes(self.authority.certificate)
        return last

    def make(
        self,
        name: str,
        *hosts: str,
        uri: str = "",
        days: float = 1,
        file: str = "",
    ) -> TlsFiles:
        """Write a certificate and its key; return all files.

        Args:
            name: of its owner, and of the files unless `file` is.
            hosts: of a server; empty: it is a client's.
            uri: such as a SPIFFE id.
            days: that it counts.
            file: of earlier ones that are replaced.
        """
        names = Names(common=name, hosts=hosts, uri=uri)
        made = issue(self.authority, names, days=days)
        certificate, key = (self.folder / f"{file or name}.{kind}" for kind in ("crt", "key"))
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        return TlsFiles(str(self.ca), str(certificate), str(key))

    def spoil(self, name: str) -> None:
        """Write into the file of a certificate what is none."""
        (self.folder / f"{name}.crt").write_bytes(b"nonsense")
