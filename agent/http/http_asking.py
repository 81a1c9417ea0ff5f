"""Reads pages of agents over HTTP, with the cluster's common authority and token: every package does it by this module.

They are asked directly. A redirect is an error, and the environment's proxies are not for them: the token must go to
the agent alone. What answers may be anybody, so an answer's size and time are bounded.
"""

import socket
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.http.http_access import read_token
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import HttpSettings

PAGE_MAX_BYTES = 1 << 28
"""More than the largest agent's state."""
_PART_BYTES = 1 << 16
_PROBE_S = 0.5


def is_on_own_host(endpoint: str) -> bool:
    """Whether a registered endpoint of an agent is on the host of the caller."""
    return is_loopback(urlsplit(base_url(endpoint)).hostname or "")


def base_url(endpoint: str) -> str:
    """Return the URL of an endpoint as it is registered: host:port, or a URL."""
    return endpoint if "://" in endpoint else f"http://{endpoint}"


class Page(NamedTuple):
    """The response to a request for an agent's page: body and headers."""

    body: bytes
    date: str | None
    """Its host's time, as in the answer's head."""


def ask_agent_page(endpoint: str, path: str, timeout_s: float, settings: HttpSettings | None = None) -> Page:
    """Return the page at `path` of the agent at `endpoint`, which is host:port or a URL, as registered.

    Raises OSError, HTTPError among them for each status but 200, and AgentSettingsError for unreadable files. The token
    is not sent in plain text, unless that is accepted or it stays on this host.
    """
    settings = settings or HttpSettings()
    url = f"{base_url(endpoint)}{path}"
    if not url.startswith(("http://", "https://")):
        raise OSError(f"{endpoint} is no address of an agent")
    request = urllib.request.Request(url)  # noqa: S310 - its scheme was looked at
    is_private = url.startswith("https:") or is_on_own_host(endpoint) or settings.plaintext_accepted
    if settings.token_file is not None and is_private:
        request.add_header("Authorization", f"Bearer {read_token(settings.token_file)}")
    context = _asking_context(settings) if url.startswith("https:") else None
    try:
        with open_directly(request, timeout_s, context) as answer:
            return Page(read_whole(answer, timeout_s), answer.headers.get("Date"))
    except OSError:
        raise
    except HTTPException as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def read_whole(answer: HTTPResponse, timeout_s: float) -> bytes:
    """Return a response's body. Raises OSError if it is too large or takes too long; HTTPException."""
    until_s = time.monotonic() + timeout_s
    body = bytearray()
    while part := answer.read1(_PART_BYTES):
        body += part
        if len(body) > PAGE_MAX_BYTES or time.monotonic() > until_s:
            raise OSError(f"{answer.geturl()}: the answer is too large, or takes longer than {timeout_s:g} s")
    return bytes(body)


def why_silent(endpoint: str, error: Exception) -> str:
    """Say why an agent does not respond: it is dead, frozen (its kernel still accepts connections), or something
    else."""
    if isinstance(error, ConnectionRefusedError):
        return f"{endpoint}: nothing listens there, so it is not running"
    if not isinstance(error, TimeoutError):
        return f"{endpoint}: {error}"
    try:
        at = urlsplit(base_url(endpoint))
        socket.create_connection((at.hostname or "", at.port or 0), _PROBE_S).close()
    except (OSError, ValueError):
        return f"{endpoint}: its host does not answer"
    return f"{endpoint}: it takes connections and answers nothing, so it is frozen, or busy"


def open_directly(request: urllib.request.Request, timeout_s: float, context: ssl.SSLContext | None) -> HTTPResponse:
    """Send a request straight to its host, past proxies and without following redirects, and return the response.

    Raises HTTPError for each status but 200, and the OSError that ended the connection as it is.
    """
    https = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects(), https)
    try:
        answer: HTTPResponse = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise (error.reason if isinstance(error.reason, OSError) else OSError(error.reason)) from error
    return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object) -> None:
        """Return None, so that the redirect is raised as an HTTPError."""


def _asking_context(settings: HttpSettings) -> ssl.SSLContext:
    """Return a context that shows the same certificate as the own agent, which is the host's."""
    context = ssl.create_default_context(cafile=str(settings.ssl_ca_file) if settings.ssl_ca_file else None)
    if settings.ssl_ca_file is None and settings.agents_ca_file is not None:
        context.load_verify_locations(settings.agents_ca_file)
    if settings.ssl_ca_file is not None and settings.ssl_certificate_file is not None:
        context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file)
    return context
