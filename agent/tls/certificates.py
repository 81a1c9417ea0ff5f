"""Watches how long the agent's certificates are valid:

in metrics, in the log and in /readyz, before others refuse them.

A file with several certificates is valid as long as the first of them to end. A file of authorities, with old and new
ones during an exchange, is valid as long as the last.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

import structlog
from prometheus_client import CollectorRegistry, Gauge

from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import AgentSettingsError
from agent.tls.broker_tls import broker_tls_plan
from agent.tls.key_stores import Store, authorities_pem, identity_pem
from kafka_log.broker_files.server_properties import BrokerProperties

log = structlog.get_logger(__name__)

SOON_DAYS = 21
"""With fewer days left, it is time to act."""
_MS_PER_DAY = 86_400_000
_LOOK_S = 3600.0


def certificate_stores(broker: BrokerProperties, settings: AgentSettings) -> dict[str, Store]:
    """Return the stores of the agent's certificates by their keys; the broker's own if the agent shows and trusts
    these."""
    of = (settings.tls, settings.http, settings.bypass, settings.gateway)
    named = {
        str(type(section).model_fields[name].alias): getattr(section, name)
        for section in of
        for name in type(section).model_fields
        if name.endswith(("certificate_file", "ca_file")) and getattr(section, name) is not None
    }
    plan = broker_tls_plan(broker, settings.broker_tls)
    with_broker = plan.certificates if plan is not None else ()
    return {key: Store(key, path) for key, path in named.items()} | {store.key: store for store in with_broker}


def days_left(store: Store, now_ms: int) -> float:
    """Return for how many days a store's certificates are valid; negative after expiry. Raises OSError, ValueError,
    AgentSettingsError."""
    from cryptography.x509 import load_pem_x509_certificates

    trusted = store.key.endswith("ca.file") or "truststore" in store.key
    pem = authorities_pem(store).encode() if trusted else identity_pem(store)
    ends = [one.not_valid_after_utc.timestamp() for one in load_pem_x509_certificates(pem)]
    end_s = max(ends) if trusted else min(ends)
    return (end_s * 1000 - now_ms) / _MS_PER_DAY


def told(store: Store, days: float) -> str | None:
    """Return the warning about a store with so many days left; None if that is long enough."""
    key, file = store.key, store.path or "what stands there"
    if math.isnan(days):
        return f"{key}: {file} cannot be read as certificates"
    if days < 0:
        return f"{key}: {file} has expired"
    return f"{key}: {file} expires in {days:.1f} days" if days < SOON_DAYS else None


class CertificateWatch:
    """Checks from time to time how long certificates are valid. For the event loop; `soon` on any thread."""

    def __init__(self, registry: CollectorRegistry, stores: Mapping[str, Store], wall_ms: Callable[[], int]) -> None:
        """`stores` are the stores of certificates by their keys."""
        self._stores = stores
        self._wall_ms = wall_ms
        self._days = Gauge(
            "remote_wal_certificate_days_left",
            "Days until a certificate of the agent, or the authority that it trusts, expires; NaN: it cannot be read",
            ["key"],
            registry=registry,
        )
        self.soon: list[str] = []
        """The texts for /readyz."""

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Check how long certificates are valid, for ever; returns at once if there are none."""
        while self._stores:
            await asyncio.to_thread(self.look)
            await sleep(_LOOK_S)

    def look(self) -> None:
        """Read the certificates, and log those that expire soon."""
        found = {key: self._looked_at(store) for key, store in self._stores.items()}
        for key, days in found.items():
            self._days.labels(key).set(days)
        self.soon = [text for key, days in found.items() if (text := told(self._stores[key], days)) is not None]
        for text in self.soon:
            log.warning("certificate_ends", reason=text, hint="new files are taken without a restart")

    def _looked_at(self, store: Store) -> float:
        try:
            return days_left(store, self._wall_ms())
        except (OSError, ValueError, AgentSettingsError):
            return math.nan
