"""An authority for certificates of tests and of a local cluster: PEM files in a directory."""

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from replication.wire.peer_connection import PeerTls

_BEGINS = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_LIFE = datetime.timedelta(days=36_500)


class Authority:
    """A certificate authority. Its key is only in memory, unless it is `kept`."""

    def __init__(self, directory: Path, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        self.directory = directory
        self._key = key or ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("authority")
        self.file = directory / "ca.pem"
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    @classmethod
    def kept(cls, directory: Path) -> Self:
        """Return the authority of this directory, created if there is none, so that earlier certificates stay
        trusted."""
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "ca.key"
        if file.exists():
            key = serialization.load_pem_private_key(file.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - written below
            return cls(directory, key)
        key = ec.generate_private_key(ec.SECP256R1())
        file.write_bytes(_unencrypted(key))
        return cls(directory, key)

    def tls_for(
        self, name: str, addresses: Iterable[str] = (), life: datetime.timedelta = _LIFE, also: Iterable[str] = ()
    ) -> PeerTls:
        """Write a new key, and a certificate for these names (`name`, `also`) and the IP addresses to listen at.

        Certificates begin with the year 2026, so with a `life` of a day this one has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [*map(x509.DNSName, (name, *also)), *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]
        certificate = self._builder(_subject(name), key.public_key(), life).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        files = PeerTls(self.directory / f"{name}.pem", self.directory / f"{name}.key", self.file)
        files.certificate_file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        files.key_file.write_bytes(_unencrypted(key))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta = _LIFE
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGINS)
            .not_valid_after(_BEGINS + life)
        )


def pkcs12_of(files: PeerTls, password: str) -> bytes:
    """Return certificate, key and authority of these files as one PKCS12 store."""
    return pkcs12.serialize_key_and_certificates(
        b"broker",
        serialization.load_pem_private_key(files.key_file.read_bytes(), None),  # type: ignore[arg-type]
        x509.load_pem_x509_certificate(files.certificate_file.read_bytes()),
        [x509.load_pem_x509_certificate(files.ca_file.read_bytes())],
        serialization.BestAvailableEncryption(password.encode()),
    )


def _unencrypted(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
