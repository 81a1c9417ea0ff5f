"""Finds out what a bootstrap server speaks, before a client asks it.

Kafka's clients have no word for "there is no TLS at this port": they try again until their time is over. The questions
here are those that a broker answers before any login: ApiVersions, and SaslHandshake, which tells whether a listener
wants a login, and by which mechanisms (Kafka's protocol guide). Without a login Metadata tells where it leads clients:
the listener of brokers, or of agents, leads to where only they come. What gives none of Kafka's answers, or none for a
while, is asked without and with TLS, and by HTTP.
"""

import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import ClientPropertyError, KafkaClusterError
from kafka_cluster.kafka_python_config import tls_context

T = TypeVar("T")
ANSWER_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 4.0
SILENCE_S: Final = 1.5
"""After so long a silence the address is asked in other ways, too; its answer still counts. Guessed."""
_OTHER_WAY_S: Final = 1.0
FROZEN_S: Final = 3.0
"""A broker that has taken a connection and answers nothing for so long counts as frozen. Guessed."""

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})")
_HTTP: Final = "HTTP"
_METADATA: Final = 3
_API_VERSIONS: Final = 18
_SASL_HANDSHAKE: Final = 17
_UNSUPPORTED_SASL_MECHANISM: Final = 33
_ILLEGAL_SASL_STATE: Final = 34
_MAX_ANSWER_BYTES: Final = 1 << 20
_BROKERS_MAX: Final = 32
"""So many of those that a listener leads to are tried."""


class ClusterUnreachableError(KafkaClusterError):
    """No bootstrap server responds in the client's protocol and login."""


class _MismatchError(Exception):
    """The other side speaks something else; the text says which key to change."""


class _NotKafkaError(Exception):
    """The answer is none of Kafka's."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """What a listener of Kafka wants. `wants_login` is None if it does not tell, as a proxy may."""

    wants_login: bool | None
    mechanisms: tuple[str, ...] = ()
    brokers: tuple[tuple[str, int], ...] = ()
    """Where it leads clients, if it tells without a login."""
    refuses_clients: bool = False
    """Whether it ends the connection when it is asked for brokers."""


def reach(
    client: KafkaClientConfig,
    where: str = "the client's file",
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[str, int], ...]:
    """Return once a bootstrap server responds in the client's protocol, by default within 10 s; all are asked at once.

    Returns the brokers' addresses as that server tells them; none if it wants a login first. `where` names the client's
    settings in messages. Raises ClusterUnreachableError; ClientPropertyError for an invalid address.
    """
    begun_s = clock()
    addresses = [parse_server(one) for one in client.bootstrap_servers.split(",")]
    reasons: dict[tuple[str, int], str] = {}
    pool = ThreadPoolExecutor(len(addresses))
    try:
        bound_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
        tried = {pool.submit(ask, one, client, where, bound_s): one for one in addresses}
        for done in as_completed(tried):
            error = done.exception()
            if error is None:
                return done.result()
            reasons[tried[done]] = _reason(error, where)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    named = zip(client.bootstrap_servers.split(","), addresses, strict=True)
    told = "; ".join(f"{text.strip()}: {reasons[address]}" for text, address in named)
    raise ClusterUnreachableError("reach", "the cluster", f"no broker answers, after {clock() - begun_s:.1f} s: {told}")


def parse_server(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises ClientPropertyError."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or not 0 < int(found[3]) < 1 << 16:
        raise ClientPropertyError("read addresses,", repr(text.strip()), "this is no host:port")
    return found[1] or found[2], int(found[3])


def find_frozen(brokers: Collection[tuple[str, int]], client: KafkaClientConfig) -> list[str]:
    """Return those that take a connection and answer nothing, as a frozen process does: its kernel takes it."""
    has_tls = str(client.properties.get("security.protocol", "PLAINTEXT")).upper().endswith("SSL")
    context = _context(client)[0] if has_tls else None

    def is_frozen(broker: tuple[str, int]) -> bool:
        with suppress(OSError, EOFError, _NotKafkaError), _dialled(broker, context, CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(FROZEN_S)
            try:
                connection.sendall(_request(_API_VERSIONS))
                _answer(connection)
            except TimeoutError:
                return True
        return False

    with ThreadPoolExecutor(max(len(brokers), 1)) as pool:
        found = zip(brokers, pool.map(is_frozen, brokers), strict=True)
        return [f"{host}:{port}" for (host, port), is_one in found if is_one]


def ask(
    address: tuple[str, int], client: KafkaClientConfig, where: str, timeout_s: float
) -> tuple[tuple[str, int], ...]:
    """Check one address, and return where it leads.

    Raises OSError or EOFError if it does not respond, or speaks another protocol than the client.
    """
    protocol = str(client.properties.get("security.protocol", "PLAINTEXT")).upper()
    mechanism = str(client.properties.get("sasl.mechanism", "GSSAPI"))
    has_tls = protocol.endswith("SSL")

    def check_language() -> None:
        spoken = _languages(address)
        if spoken and protocol not in spoken:
            raise _mismatch(" or ".join(spoken), protocol, where)

    context, has_identity = _context(client) if has_tls else (None, True)
    try:
        found = _converse(address, context, has_identity, mechanism, timeout_s, check_language)
    except (ssl.SSLCertVerificationError, TimeoutError, ConnectionRefusedError, socket.gaierror):
        raise
    except (OSError, EOFError, _NotKafkaError):
        check_language()
        raise
    if found.wants_login not in (None, protocol.startswith("SASL")):
        raise _mismatch(_protocol(has_tls, found.wants_login), protocol, where)
    if found.mechanisms and protocol.startswith("SASL") and mechanism not in found.mechanisms:
        raise _MismatchError(
            f"it takes logins by {', '.join(found.mechanisms)}, and the client's is {mechanism}: change sasl.mechanism "
            f"in {where}"
        )
    if found.refuses_clients:
        reason = "it tells clients of no brokers, as ports for brokers and controllers do"
        raise _MismatchError(f"{reason}: change the address to a listener for clients")
    if found.brokers and (reason := _astray(found.brokers, where, min(timeout_s, CONNECT_TIMEOUT_S))):
        raise _MismatchError(f"{reason}: change the address to a listener for clients")
    return found.brokers


def _astray(brokers: Collection[tuple[str, int]], where: str, timeout_s: float) -> str:
    """Return why a client reaches none of the brokers that it is led to; empty: it may reach one."""

    def failure(broker: tuple[str, int]) -> OSError | None:
        try:
            with _dialled(broker, None, timeout_s):
                return None
        except OSError as error:
            return error

    with ThreadPoolExecutor(len(brokers)) as pool:
        failures = list(pool.map(failure, brokers))
    if any(not isinstance(one, ConnectionRefusedError | socket.gaierror) for one in failures):
        return ""
    (host, port), reason = next(iter(brokers)), _reason(next(filter(None, failures)), where)
    return f"it leads to {host}:{port}{' and others' * (len(brokers) > 1)}, and none can be reached ({reason})"


def _protocol(has_tls: bool, wants_login: bool | None) -> str:
    return f"{'SASL_' if wants_login else ''}{'SSL' if has_tls else 'PLAINTEXT'}"


def _mismatch(spoken: str, protocol: str, where: str) -> _MismatchError:
    if spoken == _HTTP:
        return _MismatchError("it speaks HTTP, so it is no broker's port: change the address")
    return _MismatchError(f"it speaks {spoken}, and the client {protocol}: change security.protocol in {where}")


def _reason(error: BaseException, where: str) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLCertVerificationError):
        key = (
            "ssl.truststore.location"
            if error.verify_code not in _WRONG_NAME
            else "ssl.endpoint.identification.algorithm"
        )
        return f"its certificate is not accepted: {error.verify_message}: see {key} in {where}"
    if isinstance(error, ssl.SSLError):
        told = f"it ends TLS ({error.reason}), as where it wants a client's certificate"
        return f"{told}: see ssl.keystore.location in {where}"
    if isinstance(error, EOFError | ConnectionError):
        return "it closes the connection unanswered"
    return "its answer is none of Kafka's" if isinstance(error, _NotKafkaError) else str(error)


_WRONG_NAME: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def _context(client: KafkaClientConfig) -> tuple[ssl.SSLContext, bool]:
    """Return the client's TLS, and whether it shows the client's own certificate, if there is one to be shown."""
    try:
        context = tls_context(client.properties)
    except (OSError, ValueError):  # such as a password that is wrong: the client will say so
        return unverified(), False
    return context, not {"ssl.keystore.location", "ssl.certificate.pem"} & client.properties.keys()


def unverified() -> ssl.SSLContext:
    """Return TLS that trusts whoever answers, for what is only asked whether and how it speaks."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _converse(
    address: tuple[str, int],
    context: ssl.SSLContext | None,
    has_identity: bool,
    mechanism: str,
    timeout_s: float,
    on_silence: Callable[[], None],
) -> _Listener:
    """Ask what the listener wants. Raises OSError, EOFError, _NotKafkaError, and what `on_silence` raises."""
    with _dialled(address, context, min(timeout_s, CONNECT_TIMEOUT_S)) as connection:

        def patiently(act: Callable[[], T]) -> T:
            connection.settimeout(min(SILENCE_S, timeout_s))
            try:
                return act()
            except TimeoutError:
                if timeout_s <= SILENCE_S:
                    raise
                on_silence()
            connection.settimeout(timeout_s - SILENCE_S)
            return act()

        if isinstance(connection, ssl.SSLSocket):
            try:
                patiently(connection.do_handshake)
            except (ssl.SSLCertVerificationError, TimeoutError):
                raise
            except OSError as error:
                raise _NotKafkaError from error
            if not has_identity:  # the broker would log a failed login
                return _Listener(None)
        with suppress(OSError):  # why it was closed is read behind it
            connection.sendall(_request(_API_VERSIONS))
        if len(patiently(lambda: _answer(connection))) < struct.calcsize(">ihi"):
            raise _NotKafkaError
        with suppress(OSError, EOFError, _NotKafkaError, struct.error, UnicodeDecodeError):
            connection.sendall(_request(_SASL_HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism.encode()))
            found = _listener(patiently(lambda: _answer(connection)))
            return _asked_where_it_leads(connection, found) if found.wants_login is False else found
        return _Listener(None)


def _asked_where_it_leads(connection: socket.socket, found: _Listener) -> _Listener:
    connection.settimeout(SILENCE_S)
    try:
        connection.sendall(_request(_METADATA, struct.pack(">i", 0), version=1))  # of no topics
        return replace(found, brokers=_brokers(_answer(connection)))
    except (EOFError, ConnectionError):
        return replace(found, refuses_clients=True)
    except (TimeoutError, _NotKafkaError, struct.error, UnicodeDecodeError):
        return found


@contextmanager
def _dialled(address: tuple[str, int], context: ssl.SSLContext | None, timeout_s: float) -> Iterator[socket.socket]:
    """Connect; the TLS handshake is made when it is asked for, or with the first bytes.

    A socket is wrapped before it is connected, because Python leaves it open if the other side resets it before TLS.
    """
    failure = OSError("it has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        with ExitStack() as open_:
            connection = open_.enter_context(socket.socket(family, kind, protocol))
            if context is not None:
                own = context.wrap_socket(connection, server_hostname=address[0], do_handshake_on_connect=False)
                connection = open_.enter_context(own)
            connection.settimeout(timeout_s)
            try:
                connection.connect(where)
            except OSError as error:
                failure = error
                continue
            yield connection
            return
    raise failure


def _request(api_key: int, body: bytes = b"", version: int = 0) -> bytes:
    name = b"remote-wal"
    header = struct.pack(">hhih", api_key, version, 0, len(name)) + name
    return struct.pack(">i", len(header) + len(body)) + header + body


def _answer(connection: socket.socket) -> bytes:
    """Return a response with its correlation id. Raises OSError, EOFError, _NotKafkaError."""
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 4 <= size <= _MAX_ANSWER_BYTES:
        raise _NotKafkaError
    answer = _exactly(connection, size)
    if answer[:4] != bytes(4):
        raise _NotKafkaError
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := connection.recv(size - len(found))):
            raise EOFError
        found += part
    return found


def _listener(answer: bytes) -> _Listener:
    code, count = struct.unpack_from(">hi", answer, 4)
    if code == _ILLEGAL_SASL_STATE:
        return _Listener(False)
    if code not in (0, _UNSUPPORTED_SASL_MECHANISM):
        return _Listener(None)
    mechanisms, at = [], 10
    for _ in range(count):
        mechanism, at = _text(answer, at)
        mechanisms.append(mechanism)
    return _Listener(True, tuple(sorted(mechanisms)))


def _brokers(answer: bytes) -> tuple[tuple[str, int], ...]:
    """Return the addresses in a Metadata response of version 1."""
    (count,), brokers, at = struct.unpack_from(">i", answer, 4), [], 8
    for _ in range(count):
        host, at = _text(answer, at + 4)
        (port,) = struct.unpack_from(">i", answer, at)
        _, at = _text(answer, at + 4)  # the rack
        brokers.append((host, port))
    return tuple(brokers[:_BROKERS_MAX])


def _text(answer: bytes, at: int) -> tuple[str, int]:
    """Return the string there, empty for null, and where it ends."""
    (length,) = struct.unpack_from(">h", answer, at)
    end = at + 2 + max(length, 0)
    return answer[at + 2 : end].decode(), end


def _languages(address: tuple[str, int]) -> tuple[str, ...]:
    """Return what is spoken there: the protocols that it may be, HTTP, or nothing that is known."""
    ways = [(way, has_tls) for way in (_by_http, _by_kafka) for has_tls in (False, True)]
    pool = ThreadPoolExecutor(len(ways))
    try:
        asked = [pool.submit(way, address, has_tls) for way, has_tls in ways]
        return next((found for done in as_completed(asked) if (found := done.result())), ())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _by_kafka(address: tuple[str, int], has_tls: bool) -> tuple[str, ...]:
    def end() -> None:
        raise TimeoutError

    try:
        found = _converse(address, unverified() if has_tls else None, True, "", _OTHER_WAY_S, end)
    except (TimeoutError, ConnectionRefusedError, _NotKafkaError):
        return ()
    except (OSError, EOFError):  # behind a handshake it may want a certificate
        return ("SSL", "SASL_SSL") if has_tls else ()
    logins = (False, True) if found.wants_login is None else (found.wants_login,)
    return tuple(_protocol(has_tls, login) for login in logins)


def _by_http(address: tuple[str, int], has_tls: bool) -> tuple[str, ...]:
    context = unverified() if has_tls else None
    with suppress(OSError, EOFError), _dialled(address, context, _OTHER_WAY_S) as connection:
        connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        if _exactly(connection, 5) == b"HTTP/":
            return (_HTTP,)
    return ()
