"""Makes Maven trust the certificate authorities of the environment.

Java has its own list and ignores `SSL_CERT_FILE`, which tells pip, git and curl about the authority
of a company's proxy. So this module writes the bundle in Java's key store format: magic, version
and count; then for each certificate a tag, an alias, a time, its type and its bytes, all big-endian
with 2-byte lengths before texts; at the end a SHA-1 that only a reader with a password checks.
Source: `sun.security.provider.JavaKeyStore` in OpenJDK.
"""

import hashlib
import os
import re
import ssl
import struct
from pathlib import Path

MAGIC = 0xFEEDFEED
VERSION = 2
TRUSTED_CERTIFICATE = 2
NO_TIME = 0
DIGEST_SALT = b"Mighty Aphrodite"
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def maven_options(directory: Path) -> str:
    """Return the value of MAVEN_OPTS: the present one, plus the bundle if there is one.

    Args:
        directory: for the key store.
    """
    options = os.environ.get("MAVEN_OPTS", "")
    bundle = os.environ.get("SSL_CERT_FILE", "")
    if not bundle or not Path(bundle).is_file():
        return options
    store = directory / "trusted.jks"
    store.write_bytes(_key_store(Path(bundle).read_text(errors="replace")))
    trust = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStoreType=JKS"
    return f"{options} {trust}".strip()


def _key_store(bundle: str) -> bytes:
    certificates = [ssl.PEM_cert_to_DER_cert(pem) for pem in PEM.findall(bundle)]
    store = struct.pack(">III", MAGIC, VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        store += struct.pack(">I", TRUSTED_CERTIFICATE) + _text(f"ca-{number}")
        store += struct.pack(">Q", NO_TIME) + _text("X.509")
        store += struct.pack(">I", len(certificate)) + certificate
    return store + hashlib.sha1(DIGEST_SALT + store, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
