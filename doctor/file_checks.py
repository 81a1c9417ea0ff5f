"""Checks a server.properties on its own host without asking anybody.

It goes beyond the errors that prevent an agent's start: without storage all bytes go inline, and if a broker's
inter-broker listener does not lead to agents, followers replicate past them.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from agent.settings.agent_settings import OUR_PREFIXES, AgentSettings
from doctor.findings import Fault, Level
from doctor.gateway_checks import faults_of_file
from doctor.host_checks import listener_fault, plaintext_fault
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.loading import StorageSpec, storage_manager_class
from plugin.remote_wal_storage_manager import StorageContext
from plugin.zones.bucket_loading import bucket_plan, load_bucket
from plugin.zones.buckets import BucketSpec, check_own_zone

_SOME_CLUSTER: Final = "A" * 22
"""A cluster id, of which no more is asked than that it has the form of one."""


def judge_file(broker: BrokerProperties, settings: AgentSettings) -> list[Fault]:
    """Return what is wrong in a server.properties, or should be looked at, without asking any other process."""
    specs = _stores(broker, settings)
    files = _files_of_agent(settings) | {
        f"{spec.impl_prefix}{key}": Path(value)
        for spec in specs
        for key, value in spec.settings.items()
        if key.endswith(".file")
    }
    told = [fault for key, file in files.items() if (fault := _unreadable(key, file)) is not None]
    if (fault := _unusable_state(broker, settings)) is not None:
        told.append(fault)
    told += [fault for spec in specs if (fault := _refused(spec, broker.node_id)) is not None]
    listener = None if settings.is_shadow else listener_fault(broker, settings)
    plain = plaintext_fault(broker, settings)
    prefixes = (*OUR_PREFIXES, *(spec.impl_prefix for spec in specs))
    return [
        *_unfilled(broker, prefixes),
        *told,
        *(fault for fault in (listener, plain) if fault is not None),
        *faults_of_file(broker, settings),
    ]


def _stores(broker: BrokerProperties, settings: AgentSettings) -> list[StorageSpec]:
    """Return the stores that the agent will open."""
    specs = (settings.store_spec(broker) if settings.has_store else None, settings.archive_spec(broker))
    return [spec for spec in specs if spec is not None]


def _files_of_agent(settings: AgentSettings) -> dict[str, Path]:
    """Return by key the named files that must exist."""
    return {
        str(field.alias): value
        for section in vars(settings).values()
        if isinstance(section, BaseModel)
        for name, field in type(section).model_fields.items()
        if isinstance(value := getattr(section, name), Path) and str(field.alias).endswith((".file", ".config"))
    }


def _unreadable(key: str, file: Path) -> Fault | None:
    if not file.is_file():
        return Level.ERROR, f"{key}: {file} is not there", "write the file, or correct its name"
    if not os.access(file, os.R_OK):
        return Level.ERROR, f"{key}: {file} cannot be read by this user", "run this as the agent's user, or let it read"
    return None


def _unusable_state(broker: BrokerProperties, settings: AgentSettings) -> Fault | None:
    """Return why an agent of this user could not write its state directory, or make it. A file without a name is made
    there: what modes say is not all, as in /proc. The default may be missing, as the systemd unit makes it."""
    key, directory = "remote.wal.agent.state.directory", settings.process.state_directory
    there = next(one for one in (directory, *directory.parents) if os.access(one, os.F_OK))
    if there != directory and key not in broker.raw:
        return None
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        found = "cannot be written" if there == directory else f"is not there, and cannot be made in {there}"
        change = "run this as the agent's user, let it write there, or correct the key"
        return Level.ERROR, f"{key}: {directory} {found} ({error.strerror})", change
    return None


def _refused(spec: StorageSpec, broker_id: int) -> Fault | None:
    """Return why the storage manager refuses its settings. It is made, and the store is asked nothing."""
    try:
        storage_manager_class(spec.class_name, spec.class_path)
        told = [BucketSpec("", spec.settings)]
        if spec.buckets:
            check_own_zone(spec)
            told = list(bucket_plan(spec).buckets.values())
        for one in told:
            context = StorageContext(_SOME_CLUSTER, broker_id, makes_missing=False)
            load_bucket(spec, one, context, is_written=False).close()
    except RemoteStorageConfigError as error:
        key = error.key if error.key.startswith((*OUR_PREFIXES, spec.impl_prefix)) else f"{spec.impl_prefix}{error.key}"
        hint = f": {error.hint}" if error.hint else ""
        return Level.ERROR, f"{key}: {error.reason}", f"correct the key{hint}"
    except RemoteStorageError as error:
        return Level.ERROR, f"{spec.impl_prefix}*: {error}", "correct what it names"
    return None


def _unfilled(broker: BrokerProperties, prefixes: tuple[str, ...]) -> Iterator[Fault]:
    for key in broker.raw:
        if key.startswith(prefixes) and "<" in broker.raw[key] and ">" in broker.raw[key]:
            yield Level.ERROR, f"{key}: what stands in angle brackets is to be filled in", "write what only you know"
