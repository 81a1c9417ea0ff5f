"""The agent's settings, from the broker's own server.properties.

An unmodified broker ignores unknown keys, so one file configures both. The keys of KIP-1176 keep their names, and ours
follow its style. `docs/configuration.md` is generated from the sections here.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from agent.settings.gateway_settings import GatewaySettings
from agent.settings.lifecycle_settings import LifecycleSettings
from agent.settings.process_settings import (
    BrokerTlsSettings,
    BypassSettings,
    ClientSettings,
    HttpSettings,
    PeerSettings,
    ProcessSettings,
    TlsSettings,
)
from agent.settings.replication_settings import LinkSettings
from agent.settings.setting_types import Section
from agent.settings.upload_settings import (
    ArchiveSettings,
    LogManagerSettings,
    StorageSettings,
)
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.loading import ARCHIVE_IMPL_PREFIX, StorageSpec, settings_under_prefix
from plugin.prices import network_of

OUR_PREFIXES = ("remote.wal.", "remote.log.wal.")


class AgentSettings(BaseModel):
    """All settings of the agent in server.properties, in sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    storage: StorageSettings = StorageSettings()
    log_manager: LogManagerSettings = LogManagerSettings()
    archive: ArchiveSettings = ArchiveSettings()
    link: LinkSettings = LinkSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    peers: PeerSettings = PeerSettings()
    http: HttpSettings = HttpSettings()
    client: ClientSettings = ClientSettings()
    process: ProcessSettings = ProcessSettings()
    bypass: BypassSettings = BypassSettings()
    tls: TlsSettings = TlsSettings()
    broker_tls: BrokerTlsSettings = BrokerTlsSettings()
    gateway: GatewaySettings = GatewaySettings()

    @property
    def is_shadow(self) -> bool:
        """Whether the agent runs in shadow mode: no broker replicates through it."""
        return self.process.mode == "shadow"

    @property
    def has_store(self) -> bool:
        """Whether the agent uses object storage."""
        return self.storage.system_enable and not self.is_shadow

    def store_spec(self, broker: BrokerProperties) -> StorageSpec:
        """Return the storage manager for this broker's agent; with a bucket for each zone, it writes to its zone's."""
        storage, own = self.storage, settings_under_prefix(broker.raw)
        return StorageSpec(
            storage.manager_class_name, storage.manager_class_path, own, buckets=storage.buckets, zone=broker.rack
        )

    def archive_spec(self, broker: BrokerProperties) -> StorageSpec | None:
        """Return the archive's storage manager; None if the agent's archive is off."""
        if not self.archive.enable:
            return None
        own, class_path = settings_under_prefix(broker.raw, ARCHIVE_IMPL_PREFIX), self.storage.manager_class_path
        return StorageSpec(self.archive.storage_manager_class_name, class_path, own, ARCHIVE_IMPL_PREFIX)

    @property
    def price_network(self) -> str:
        """The section of the price table for cross-zone traffic."""
        return network_of(self.storage.price_section)

    @model_validator(mode="before")
    @classmethod
    def _in_sections(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """Sort keys into sections. Keys of no section stay at the top, and are refused."""
        rest = dict(keys)
        sections: dict[str, Any] = {
            name: {key: rest.pop(key) for key in known if key in rest} for name, known in cls._keys().items()
        }
        return sections | rest

    @model_validator(mode="after")
    def _tell_http_whom_agents_trust(self) -> Self:
        self.http.trust_agents(self.tls.ca_file)
        return self

    @classmethod
    def _keys(cls) -> dict[str, dict[str, FieldInfo]]:
        """Return the keys by section name."""
        return {
            name: {field.alias or "": field for field in section.annotation.model_fields.values()}
            for name, section in cls.model_fields.items()
            if isinstance(section.annotation, type) and issubclass(section.annotation, Section)
        }

    @classmethod
    def documented(cls) -> dict[str, FieldInfo]:
        """Return the field of each key, in the order of the documentation."""
        return {key: field for known in cls._keys().values() for key, field in known.items()}
