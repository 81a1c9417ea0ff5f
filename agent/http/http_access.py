"""Access to the HTTP endpoint: TLS, client certificates, a token."""

import base64
import binascii
import hmac
import ssl
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.settings.process_settings import HttpSettings
from agent.settings.setting_types import AgentSettingsError
from replication.wire.peer_connection import listening_context

log = structlog.get_logger(__name__)

_KEY = "remote.wal.agent.http"


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What the HTTP listener requires of clients; by default nothing."""

    tls: ssl.SSLContext | None = None
    token_file: Path | None = None
    """Read at each request, so that a new token takes effect."""

    def admits(self, authorization: str) -> bool:
        """Whether this Authorization header has the token: as bearer token, or as password of basic authentication."""
        if self.token_file is None:
            return True
        try:
            token = read_token(self.token_file)
        except AgentSettingsError as error:
            log.error("http_token_unreadable", error=str(error), consequence="nobody is answered")
            return False
        return hmac.compare_digest(_shown(authorization), token.encode())


def _shown(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def read_token(file: Path) -> str:
    """Read a token. Raises AgentSettingsError naming key and file."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentSettingsError(f"{_KEY}.token.file: {file}: {error}") from error
    if not token:
        raise AgentSettingsError(f"{_KEY}.token.file: {file} is empty")
    return token


def http_access(settings: HttpSettings) -> HttpAccess:
    """Build the access rules from the files that the settings name. Raises AgentSettingsError naming the key of an
    unreadable one."""
    if settings.token_file is not None:
        read_token(settings.token_file)
    certificate, key = settings.ssl_certificate_file, settings.ssl_key_file
    if certificate is None or key is None:
        return HttpAccess(None, settings.token_file)
    try:
        return HttpAccess(listening_context(certificate, key, settings.ssl_ca_file), settings.token_file)
    except OSError as error:  # TLS errors, too
        raise AgentSettingsError(f"{_KEY}.ssl.*: {certificate}, {key}: {error}") from error
