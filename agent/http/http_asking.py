"""Reads pages of agents over HTTP, with the cluster's common authority and token: every package does it by this module.

They are asked directly. A redirect is an error, and the environment's proxies are not for them: the token must go to
the agent alone. What answers may be anybody, so an answer's size and time are bounded.
"""

import io
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from urllib.error import HTTPError
from urllib.parse import urlsplit

from agent.http.http_access import read_token
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import HttpSettings
from plugin.errors import in_words

PAGE_MAX_BYTES = 1 << 28
"""More than the largest agent's state."""
_PART_BYTES = 1 << 16
_NOT_RUNNING = "nothing listens there, so it is not running"
_FROZEN = "it takes connections and answers nothing, so it is frozen, or busy"
_PROBE_S = 0.5


def is_on_own_host(endpoint: str) -> bool:
    """Whether a registered endpoint of an agent is on the host of the caller."""
    with suppress(ValueError):  # no valid address
        return is_loopback(urlsplit(base_url(endpoint)).hostname or "")
    return False


def base_url(endpoint: str) -> str:
    """Return the URL of an endpoint as it is registered: host:port, or a URL."""
    return endpoint if "://" in endpoint else f"http://{endpoint}"


def ask_agent_page(endpoint: str, path: str, timeout_s: float, settings: HttpSettings | None = None) -> bytes:
    """Return the page at `path` of the agent at `endpoint`, which is host:port or a URL, as registered.

    Raises OSError, HTTPError among them for each status but 200, and AgentSettingsError for unreadable files. The token
    is not sent in plain text, unless that is accepted or it stays on this host.
    """
    settings = settings or HttpSettings()
    url = f"{base_url(endpoint)}{path}"
    is_private = url.startswith("https:") or is_on_own_host(endpoint) or settings.plaintext_accepted
    headers = {}
    if settings.token_file is not None and is_private:
        headers["Authorization"] = f"Bearer {read_token(settings.token_file)}"
    context = _asking_context(settings) if url.startswith("https:") else None
    return ask_directly(url, timeout_s, headers, context=context)


def why_silent(endpoint: str, error: Exception) -> str:
    """Say why an agent does not respond: it is dead, frozen (its kernel still accepts connections), or something
    else."""
    if isinstance(error, ConnectionRefusedError):
        return f"{endpoint}: {_NOT_RUNNING}"
    if not isinstance(error, TimeoutError):
        return f"{endpoint}: {in_words(error)}"
    try:
        at = urlsplit(base_url(endpoint))
        socket.create_connection((at.hostname or "", at.port or 0), _PROBE_S).close()
    except (OSError, ValueError):
        return f"{endpoint}: its host does not answer"
    return f"{endpoint}: {_FROZEN}"


def is_away(reason: str) -> bool:
    """Whether this reason of `why_silent` is that the agent does not run or is frozen; else it may be well."""
    return _NOT_RUNNING in reason or is_frozen(reason)


def is_frozen(reason: str) -> bool:
    """Whether this reason of `why_silent` is that the agent is frozen, or busy."""
    return _FROZEN in reason


def ask_directly(
    url: str,
    timeout_s: float,
    headers: Mapping[str, str],
    form: bytes | None = None,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """Send a request straight to its host, past proxies and without following redirects. Returns the response.

    Each address of the host may take `timeout_s` to connect. Sending and the whole response end by then, too, however
    slowly the bytes come. Raises OSError for all that goes wrong, a malformed URL included: HTTPError for each status
    but 200.
    """
    until_s, body = time.monotonic() + timeout_s, bytearray()
    try:
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or at.hostname is None or at.username is not None:
            raise OSError(f"{url} is no address over HTTP")
        connection = (
            HTTPConnection(at.hostname, at.port, timeout=timeout_s)
            if at.scheme == "http"
            else HTTPSConnection(at.hostname, at.port, timeout=timeout_s, context=context)
        )
        with closing(connection):
            connection.connect()
            # A socket's time-out is for each part of a response, of which there may be any number.
            late = threading.Timer(max(until_s - time.monotonic(), 0), _end, (connection.sock,))
            late.daemon = True
            late.start()
            try:
                where = f"{at.path or '/'}{'?' if at.query else ''}{at.query}"
                connection.request("GET" if form is None else "POST", where, form, headers)
                with connection.getresponse() as answer:
                    while len(body) <= PAGE_MAX_BYTES and (part := answer.read1(_PART_BYTES)):
                        body += part
            finally:
                late.cancel()
        if len(body) > PAGE_MAX_BYTES:
            raise OSError(f"{url}: the answer is too large")
        if answer.length:
            raise IncompleteRead(bytes(body), answer.length)
    except (OSError, HTTPException, ValueError) as error:
        if time.monotonic() >= until_s:
            raise TimeoutError(f"{url}: timed out after {timeout_s:g} s") from error
        raise error if isinstance(error, OSError) else OSError(f"{url}: {type(error).__name__}: {error}") from error
    if time.monotonic() >= until_s:  # what ended the body may have been the time
        raise TimeoutError(f"{url}: timed out after {timeout_s:g} s")
    if answer.status != 200:
        raise HTTPError(url, answer.status, answer.reason, answer.headers, io.BytesIO(body))
    return bytes(body)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # also under TLS, without a word to the other side


def _asking_context(settings: HttpSettings) -> ssl.SSLContext:
    """Return a context that shows the same certificate as the own agent, which is the host's."""
    context = ssl.create_default_context(cafile=str(settings.ssl_ca_file) if settings.ssl_ca_file else None)
    if settings.ssl_ca_file is None and settings.agents_ca_file is not None:
        context.load_verify_locations(settings.agents_ca_file)
    if settings.ssl_ca_file is not None and settings.ssl_certificate_file is not None:
        context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file)
    return context
