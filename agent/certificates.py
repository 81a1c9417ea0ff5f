"""How long the agent's certificates still hold: told in metrics, in the log and in /readyz, before others refuse them.

A file with several certificates holds as long as the first of them to end; one of authorities, among which old and new
ones stand side by side while they are exchanged, as long as the last.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Gauge

from agent.settings import AgentSettings

log = structlog.get_logger(__name__)

SOON_DAYS = 21
"""With fewer left, it is time."""
_MS_PER_DAY = 86_400_000
_LOOK_S = 3600.0


def certificate_files(settings: AgentSettings) -> dict[str, Path]:
    """Those that are named, by their keys."""
    of = (settings.tls, settings.http, settings.bypass, settings.gateway)
    return {
        str(type(section).model_fields[name].alias): getattr(section, name)
        for section in of
        for name in ("certificate_file", "ca_file", "ssl_certificate_file", "ssl_ca_file")
        if getattr(section, name, None) is not None
    }


def days_left(key: str, file: Path, now_ms: int) -> float:
    """Below 0 where it has expired. Raises OSError, ValueError."""
    from cryptography.x509 import load_pem_x509_certificates

    ends = [one.not_valid_after_utc.timestamp() for one in load_pem_x509_certificates(file.read_bytes())]
    end_s = max(ends) if key.endswith("ca.file") else min(ends)
    return (end_s * 1000 - now_ms) / _MS_PER_DAY


def told(key: str, file: Path, days: float) -> str | None:
    """What is to be said of it; None while it holds for long."""
    if math.isnan(days):
        return f"{key}: {file} cannot be read as certificates"
    if days < 0:
        return f"{key}: {file} has expired"
    return f"{key}: {file} expires in {days:.1f} days" if days < SOON_DAYS else None


class CertificateWatch:
    """Looks from time to time, as files are exchanged. Used from the event loop; `soon` on any thread."""

    def __init__(self, registry: CollectorRegistry, files: Mapping[str, Path], wall_ms: Callable[[], int]) -> None:
        """`files` by their keys."""
        self._files = files
        self._wall_ms = wall_ms
        self._days = Gauge(
            "remote_wal_certificate_days_left",
            "Days until a certificate of the agent, or the authority that it trusts, expires; NaN: it cannot be read",
            ["key"],
            registry=registry,
        )
        self.soon: list[str] = []
        """What /readyz says of them."""

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Never ends, unless there are none."""
        while self._files:
            await asyncio.to_thread(self.look)
            await sleep(_LOOK_S)

    def look(self) -> None:
        """Read them, and tell of those that end soon: in the log each time, as that is once an hour."""
        found = {key: self._looked_at(key, file) for key, file in self._files.items()}
        for key, days in found.items():
            self._days.labels(key).set(days)
        self.soon = [text for key, days in found.items() if (text := told(key, self._files[key], days)) is not None]
        for text in self.soon:
            log.warning("certificate_ends", reason=text, hint="new files are taken without a restart")

    def _looked_at(self, key: str, file: Path) -> float:
        try:
            return days_left(key, file, self._wall_ms())
        except (OSError, ValueError):
            return math.nan
