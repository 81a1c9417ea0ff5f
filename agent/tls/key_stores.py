"""Reads keys and certificates from a broker's stores: PEM and PKCS12. Formats that only Java reads are refused.

The content of a store decides: keytool writes PKCS12 today, which Java also accepts if the type says JKS.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent.settings.setting_types import AgentSettingsError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_OF_JAVA = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of files of the types JKS and JCEKS."""
_PEM = b"-----BEGIN "


@dataclass(frozen=True, slots=True)
class Store:
    """A key store or trust store: a file, or PEM text in the settings themselves."""

    key: str
    """The setting that names it, for errors."""
    path: Path | None = None
    pem: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)
    """The password of a PKCS12 file, or of an encrypted PEM key."""

    def read(self) -> bytes:
        """Read the store's file. Raises OSError."""
        return self.path.read_bytes() if self.path is not None else self.pem.encode()


def identity_pem(store: Store) -> bytes:
    """Return a store's private key, which may still be encrypted, and its certificates. Raises AgentSettingsError,
    OSError."""
    content = store.read()
    if _PEM in content:
        return content
    found = _unpacked(store, content)
    if found.key is None or found.cert is None:
        raise AgentSettingsError(f"{store.key}: {store.path} has no private key with a certificate")
    from cryptography.hazmat.primitives import serialization

    key = found.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = [found.cert, *found.additional_certs]
    return key + b"".join(one.certificate.public_bytes(serialization.Encoding.PEM) for one in chain)


def authorities_pem(store: Store) -> str:
    """Return the certificates that a store trusts, as PEM. Raises AgentSettingsError, OSError."""
    content = store.read()
    if _PEM in content:
        return content.decode("ascii", "ignore")  # comments may be in any encoding, and OpenSSL accepts only ASCII
    found = _unpacked(store, content)
    if not found.additional_certs:
        raise AgentSettingsError(f"{store.key}: {store.path} has no certificate to trust")
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in found.additional_certs).decode()


def first_certificate(pem: bytes) -> "x509.Certificate":
    """Return the first certificate in PEM text: the holder's own. Raises AgentSettingsError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise AgentSettingsError(f"no certificate: {error}") from error


def names_host(certificate: "x509.Certificate", host: str) -> bool:
    """Whether the certificate is valid for a host, by name or by address (RFC 6125: a star replaces one label)."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    addresses = {str(one) for one in names.get_values_for_type(x509.IPAddress)}
    dns = {one.lower() for one in names.get_values_for_type(x509.DNSName)}
    domain = host.lower().partition(".")[2]
    by_star = "." in domain and f"*.{domain}" in dns  # OpenSSL accepts no star for a whole top-level domain
    return host in addresses or host.lower() in dns or by_star


def _unpacked(store: Store, content: bytes) -> "PKCS12KeyAndCertificates":
    if content.startswith(_OF_JAVA):
        raise AgentSettingsError(
            f"{store.key}: {store.path} is of a type that Java alone reads; convert it by: keytool -importkeystore "
            f"-srckeystore {store.path} -destkeystore {store.path}.p12 -deststoretype PKCS12"
        )
    from cryptography.hazmat.primitives.serialization import pkcs12

    password = store.password.encode() if store.password is not None else None
    try:
        return pkcs12.load_pkcs12(content, password)
    except ValueError as error:
        raise AgentSettingsError(f"{store.key}: {store.path}: {error}") from error
