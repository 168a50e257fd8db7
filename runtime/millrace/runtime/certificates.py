"""Makes certificates, and reads what they say.

Keys are of the curve P-256: every TLS library knows it, and a signature takes a tenth of a
millisecond, where RSA's takes one. A certificate counts from a few minutes ago, as clocks differ.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millrace.core.errors import InvalidConfigError
from millrace.runtime import host

_BACKDATED: Final = datetime.timedelta(minutes=5)
_NO_NAMES: Final = (
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate's names may raise beside ValueError."""
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, in PEM form."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Whom a certificate is for.

    Attributes:
        common: for people, and for clients the principal.
        hosts: names and addresses that callers connect to; empty: it is not for a server.
        uri: such as a SPIFFE id; empty: none.
    """

    common: str
    hosts: Sequence[str] = ()
    uri: str = ""


def new_authority(name: str, *, days: float) -> Issued:
    """Make an authority: it signs certificates, and no further authorities.

    Args:
        name: for people.
        days: that it counts.

    Raises:
        InvalidConfigError: a name or the time cannot be in a certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = (
        _begun(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, names: Names, *, days: float) -> Issued:
    """Make a certificate.

    Args:
        authority: that signs it.
        names: whom it is for.
        days: that it counts.

    Raises:
        InvalidConfigError: a name or the time cannot be in a certificate, or the authority's files
            are not one.
    """
    issuer, issuer_key = _authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [_SERVER, _CLIENT] if names.hosts else [_CLIENT]
    builder = (
        _begun(_subject(names.common), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    try:
        alternatives = [_general_name(name) for name in names.hosts]
        if names.uri:
            alternatives.append(x509.UniformResourceIdentifier(names.uri))
    except ValueError as error:
        raise InvalidConfigError(f"a name cannot be in a certificate: {error}") from error
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return _issued(builder.sign(issuer_key, hashes.SHA256()), key)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says.

    Attributes:
        begins: the second UTC since 1970 at which it was made.
        ends: likewise, at which it ends.
        hosts: names and addresses that callers connect to.
        uris: that it names, such as SPIFFE ids.
    """

    begins: float
    ends: float
    hosts: frozenset[str]
    uris: tuple[str, ...]
    _loaded: x509.Certificate

    def is_of(self, authorities: bytes) -> bool:
        """Return whether one of some authorities, in PEM form, has signed it."""
        for authority in _loaded(authorities):
            try:
                self._loaded.verify_directly_issued_by(authority)
            except (InvalidSignature, TypeError, ValueError):
                continue
            return True
        return False


def read(certificates: bytes) -> Certificate:
    """Return what the first of some certificates says.

    Raises:
        InvalidConfigError: they are none.
    """
    found = _loaded(certificates)[0]
    hosts: list[str] = []
    uris: list[str] = []
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*_NO_NAMES, ValueError):
        pass
    else:
        hosts = names.get_values_for_type(x509.DNSName)
        hosts += map(str, names.get_values_for_type(x509.IPAddress))
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return Certificate(
        begins=(found.not_valid_before_utc + _BACKDATED).timestamp(),
        ends=found.not_valid_after_utc.timestamp(),
        hosts=frozenset(hosts),
        uris=tuple(uris),
        _loaded=found,
    )


def is_pair(found: Issued) -> bool:
    """Return whether a key is that of the first certificate."""
    try:
        key = serialization.load_pem_private_key(found.key, password=None)
        return key.public_key() == _loaded(found.certificate)[0].public_key()
    except (ValueError, TypeError, InvalidConfigError):
        return False


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From when and until when a certificate counts, in seconds UTC since 1970."""

    begins: float
    ends: float

    @property
    def seconds(self) -> float:
        """For how long it counts in all."""
        return self.ends - self.begins


def lifetime_of(certificates: bytes) -> Lifetime:
    """Return the lifetime of the certificate among some that ends first.

    Args:
        certificates: in PEM form; the first of them, and those between it and its authority.

    Raises:
        InvalidConfigError: they are none.
    """
    first = min(_loaded(certificates), key=lambda each: each.not_valid_after_utc)
    return Lifetime(first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp())


def each_of(certificates: bytes) -> list[bytes]:
    """Return some certificates one by one, in PEM form.

    Raises:
        InvalidConfigError: they are none.
    """
    return [each.public_bytes(serialization.Encoding.PEM) for each in _loaded(certificates)]


def _loaded(certificates: bytes) -> list[x509.Certificate]:
    try:
        return list(x509.load_pem_x509_certificates(certificates))
    except (ValueError, x509.InvalidVersion) as error:
        raise InvalidConfigError(f"no certificates in PEM form: {error}") from error


def _authority(authority: Issued) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _loaded(authority.certificate)[0]
    try:
        key = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidConfigError(f"the authority's key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise InvalidConfigError("the authority's key is of another certificate, or of no curve")
    return certificate, key


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(host.current.wall_ns() / 1e9, datetime.UTC)
    try:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + datetime.timedelta(days=days)) - _BACKDATED)
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
    except (ValueError, OverflowError) as error:
        raise InvalidConfigError(f"a certificate cannot count for {days} days: {error}") from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise InvalidConfigError(f"{name!r} cannot be in a certificate: {error}") from error


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
