"""TLS with the local broker, by what stands in its own server.properties."""

import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from agent.tls.broker_tls import BrokerTls, BrokerTlsPlan, broker_tls_plan
from kafka_log.broker_files.server_properties import parse_broker_properties
from local_cluster.security.authority import Authority
from replication.wire.peer_connection import PeerTls

FILE = Path("/etc/kafka/server.properties")
HOST = "replica-1.internal"
SECRET = "planted"
SHOWN = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/tls/broker.pem"}


BETWEEN_AGENTS = {
    "remote.wal.agent.ssl.certificate.file": "/tls/agent.pem",
    "remote.wal.agent.ssl.key.file": "/tls/agent.key",
    "remote.wal.agent.ssl.ca.file": "/tls/ca.pem",
}


def plan(protocol: str = "SSL", **keys: str) -> BrokerTlsPlan | None:
    return plan_of(protocol, {**BETWEEN_AGENTS, **keys})


def plan_of(protocol: str, keys: dict[str, str]) -> BrokerTlsPlan | None:
    raw = {
        "node.id": "1",
        "listeners": "WAL://127.0.0.1:19901,CLIENT://:9092",
        "advertised.listeners": f"WAL://{HOST}:19901,CLIENT://kafka-1:9092",
        "inter.broker.listener.name": "WAL",
        "listener.security.protocol.map": f"WAL:{protocol},CLIENT:PLAINTEXT",
        **keys,
    }
    broker = parse_broker_properties(raw, FILE)
    return broker_tls_plan(broker, agent_settings(broker, FILE).broker_tls)


def planned(protocol: str = "SSL", **keys: str) -> BrokerTlsPlan:
    found = plan(protocol, **keys)
    assert found is not None
    return found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> PeerTls:
    return authority.tls_for("broker-1", also=[HOST])


def pem_store(files: PeerTls) -> Path:
    path = files.key_file.with_suffix(".keystore.pem")
    path.write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())
    return path


def in_pem_files(files: PeerTls) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem_store(files)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca_file),
    }


def with_an_encrypted_key(files: PeerTls) -> dict[str, str]:
    key = load_pem_private_key(files.key_file.read_bytes(), None)
    hidden = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode()))
    store = files.key_file.with_suffix(".hidden.pem")
    store.write_bytes(hidden + files.certificate_file.read_bytes())
    return {**in_pem_files(files), "ssl.keystore.location": str(store), "ssl.key.password": SECRET}


def in_the_properties(files: PeerTls) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": files.key_file.read_text(),
        "ssl.keystore.certificate.chain": files.certificate_file.read_text(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": files.ca_file.read_text(),
    }


def in_pkcs12(files: PeerTls) -> dict[str, str]:
    """As keytool makes them; Java takes them without a type, too, which then is JKS."""
    key = load_pem_private_key(files.key_file.read_bytes(), None)
    shown = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
    trusted = x509.load_pem_x509_certificate(files.ca_file.read_bytes())
    hidden = BestAvailableEncryption(SECRET.encode())
    own, others = files.key_file.with_suffix(".p12"), files.ca_file.with_suffix(".p12")
    own.write_bytes(pkcs12.serialize_key_and_certificates(b"1", key, shown, [trusted], hidden))  # type: ignore[arg-type]
    others.write_bytes(pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(trusted, b"ca")], hidden))
    return {
        "ssl.keystore.location": str(own),
        "ssl.keystore.password": SECRET,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(others),
        "ssl.truststore.password": SECRET,
    }


def in_the_agents_own_files(files: PeerTls) -> dict[str, str]:
    key = "remote.wal.agent.broker.ssl"
    return {
        **SHOWN,  # not there
        f"{key}.certificate.file": str(files.certificate_file),
        f"{key}.key.file": str(files.key_file),
        f"{key}.ca.file": str(files.ca_file),
    }


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> tuple[object, object]:
    """The certificates that either side was shown, through memory. Raises ssl.SSLError of whoever refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done = {one: False, other: False}
    for _ in range(10):
        for each in done:
            try:
                each.do_handshake()
                done[each] = True
            except ssl.SSLWantReadError:
                continue
        if all(done.values()):
            return one.getpeercert(), other.getpeercert()
    raise AssertionError("no end of the handshake")


def names_in(certificate: object) -> object:
    assert isinstance(certificate, dict)
    return certificate["subject"]


STORES = [in_pem_files, with_an_encrypted_key, in_the_properties, in_pkcs12, in_the_agents_own_files]


@pytest.mark.parametrize("keys", STORES)
def test_the_agent_shows_and_trusts_what_the_broker_does(
    files: PeerTls, keys: Callable[[PeerTls], dict[str, str]]
) -> None:
    found = planned(**keys(files), **{"ssl.client.auth": "required"})
    tls = BrokerTls(found)
    seen = shake_hands(tls.client_context(), tls.server_context(), HOST)
    assert [names_in(one) for one in seen] == [((("commonName", "broker-1"),),)] * 2
    assert SECRET not in repr(found)
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize("begins", [b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"])
def test_a_store_that_java_alone_reads_is_refused_with_what_converts_it(files: PeerTls, begins: bytes) -> None:
    store = files.key_file.with_suffix(".jks")
    store.write_bytes(begins + b"\0\0\0\2")
    with pytest.raises(AgentSettingsError) as caught:
        BrokerTls(planned(**{"ssl.keystore.location": str(store), "ssl.keystore.password": SECRET}))
    command = f"keytool -importkeystore -srckeystore {store} -destkeystore {store}.p12 -deststoretype PKCS12"
    assert str(caught.value).startswith("ssl.keystore.location: ")
    assert command in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"ssl.keystore.password": "guessed"}, r"ssl\.keystore\.location: .*password"),
        ({"ssl.truststore.password": "guessed"}, r"ssl\.truststore\.location: .*password"),
        ({"ssl.keystore.location": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_a_store_that_cannot_be_read_is_told_by_its_key(files: PeerTls, keys: dict[str, str], told: str) -> None:
    with pytest.raises((AgentSettingsError, OSError), match=told):
        BrokerTls(planned(**{**in_pkcs12(files), **keys}))


def test_a_wrong_password_of_a_pem_key_is_told(files: PeerTls) -> None:
    with pytest.raises(AgentSettingsError, match=r"ssl\.keystore\.location: .*password"):
        BrokerTls(planned(**{**with_an_encrypted_key(files), "ssl.key.password": "guessed"}))


def test_what_is_set_for_the_listener_wins(files: PeerTls) -> None:
    prefixed = {f"listener.name.wal.{key}": value for key, value in in_pem_files(files).items()}
    elsewhere = {"ssl.keystore.location": "/elsewhere", "ssl.truststore.location": "/elsewhere"}
    asked = {"ssl.client.auth": "none", "listener.name.wal.ssl.client.auth": "requested"}
    found = planned(**prefixed, **elsewhere, **asked)
    assert found.files == [pem_store(files), files.ca_file]
    assert found.client_auth == ssl.CERT_OPTIONAL


@pytest.mark.parametrize(
    ("protocol", "keys", "asks"),
    [
        ("SSL", {}, False),
        ("SSL", {"ssl.client.auth": "required"}, True),
        ("SASL_SSL", {"ssl.client.auth": "required"}, False),
        ("SASL_SSL", {"listener.name.wal.ssl.client.auth": "required"}, True),
    ],
)
def test_the_brokers_certificate_is_asked_for_where_the_broker_would(
    protocol: str, keys: dict[str, str], asks: bool
) -> None:
    assert (planned(protocol, **SHOWN, **keys).client_auth is ssl.CERT_REQUIRED) == asks


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_without_tls_there_is_nothing_to_show(protocol: str) -> None:
    assert plan(protocol) is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, r"remote\.wal\.agent\.broker\.ssl\.certificate\.file"),
        ({"remote.wal.agent.broker.ssl.key.file": "/tls/key.pem"}, "belong together"),
        ({**SHOWN, "ssl.client.auth": "maybe"}, r"ssl\.client\.auth: 'maybe'"),
    ],
)
def test_what_is_not_enough_is_refused_by_its_key(keys: dict[str, str], named: str) -> None:
    with pytest.raises(AgentSettingsError, match=named) as caught:
        planned(**keys)
    assert str(caught.value).startswith(f"{FILE}: ")


def test_who_is_known_by_a_certificate_alone_must_have_shown_one_to_the_agent() -> None:
    asked = {**SHOWN, "ssl.client.auth": "required"}
    with pytest.raises(AgentSettingsError, match=r"remote\.wal\.agent\.ssl\.\*: .*certificates"):
        plan_of("SSL", asked)
    assert plan_of("SSL", {**asked, "remote.wal.agent.plaintext.enable": "true"}) is not None
    assert plan_of("SSL", SHOWN) is not None
    assert plan_of("SASL_SSL", {**SHOWN, "listener.name.wal.ssl.client.auth": "required"}) is not None


def test_another_name_is_refused_unless_the_broker_checks_none(authority: Authority) -> None:
    keys = in_pem_files(authority.tls_for("broker-9"))
    tls = BrokerTls(planned(**keys))
    with pytest.raises(ssl.SSLCertVerificationError, match=f"not valid for '{HOST}'"):
        shake_hands(tls.client_context(), tls.server_context(), HOST)
    unchecked = BrokerTls(planned(**keys, **{"ssl.endpoint.identification.algorithm": ""}))
    shake_hands(unchecked.client_context(), unchecked.server_context(), HOST)


def test_rotated_files_take_effect_and_half_written_ones_do_not(authority: Authority, files: PeerTls) -> None:
    tls = BrokerTls(planned(**in_pem_files(files)))

    def serial() -> object:
        shown, _ = shake_hands(tls.client_context(), tls.server_context(), HOST)
        assert isinstance(shown, dict)
        return shown["serialNumber"]

    first, context = serial(), tls.server_context()
    assert serial() == first
    assert tls.server_context() is context, "nothing is read anew while nothing has changed"
    pem_store(authority.tls_for("broker-1", also=[HOST]))
    rotated = serial()
    assert rotated != first
    store = pem_store(files)
    whole = store.read_bytes()
    os.truncate(store, 100)
    with structlog.testing.capture_logs() as told:
        assert serial() == rotated
        assert serial() == rotated
    assert [line["event"] for line in told] == ["broker_certificate_unreadable"]
    store.unlink()
    assert serial() == rotated
    store.write_bytes(whole)
    assert serial() == rotated


def allow_reading(file: Path) -> None:
    """Change nothing but the mode; again if the clock of the file system has not moved on since."""
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.chmod(0o644)


def test_a_renewed_file_that_becomes_readable_later_is_read_then(
    authority: Authority, files: PeerTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes

    def as_another_user(file: Path) -> bytes:
        if not file.stat().st_mode & 0o004:
            raise PermissionError(f"{file}: permission denied")
        return read_bytes(file)

    tls = BrokerTls(planned(**in_pem_files(files)))
    first = tls.server_context()
    store = pem_store(authority.tls_for("broker-1", also=[HOST]))
    store.chmod(0o600)
    monkeypatch.setattr(Path, "read_bytes", as_another_user)
    assert tls.server_context() is first
    allow_reading(store)
    assert tls.server_context() is not first


def test_trusted_certificates_may_stand_below_comments_in_any_language(files: PeerTls) -> None:
    files.ca_file.write_bytes("# Főtanúsítvány\n".encode() + files.ca_file.read_bytes())
    tls = BrokerTls(planned(**in_pem_files(files)))
    shake_hands(tls.client_context(), tls.server_context(), HOST)


def test_an_expired_certificate_is_refused_until_it_is_renewed(authority: Authority) -> None:
    old = authority.tls_for("broker-1", life=timedelta(days=1), also=[HOST])
    tls = BrokerTls(planned(**in_pem_files(old)))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        shake_hands(tls.client_context(), tls.server_context(), HOST)
    pem_store(authority.tls_for("broker-1", also=[HOST]))
    shake_hands(tls.client_context(), tls.server_context(), HOST)
