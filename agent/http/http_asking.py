"""Reads pages of agents over HTTP, with the cluster's common authority and token."""

import ssl
import urllib.request
from http.client import HTTPResponse
from urllib.parse import urlsplit

from agent.http.http_access import read_token
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import HttpSettings


def is_on_own_host(endpoint: str) -> bool:
    """Whether an agent's endpoint, as it is registered, leads to the host of whoever asks."""
    return is_loopback(urlsplit(base_url(endpoint)).hostname or "")


def base_url(endpoint: str) -> str:
    """Return the URL of an endpoint as it is registered: host:port, or a URL."""
    return endpoint if "://" in endpoint else f"http://{endpoint}"


def ask_agent_page(endpoint: str, path: str, timeout_s: float, settings: HttpSettings | None = None) -> HTTPResponse:
    """Return the agent's answer at `endpoint`, host:port or a URL, as it is registered. The caller closes it.

    Raises OSError, and AgentSettingsError for unreadable files. The token is not sent in plain text, unless that is
    accepted or it stays on this host.
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
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s, context=context)  # noqa: S310
    return answer


def _asking_context(settings: HttpSettings) -> ssl.SSLContext:
    """Return a context that shows the same certificate as the own agent, which is the host's."""
    context = ssl.create_default_context(cafile=str(settings.ssl_ca_file) if settings.ssl_ca_file else None)
    if settings.ssl_ca_file is not None and settings.ssl_certificate_file is not None:
        context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file)
    return context
