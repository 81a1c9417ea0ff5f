"""Makes docs/configuration.md: `python -m agent.settings.configuration_doc > docs/configuration.md`."""

import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import parse_user
from metadata_topic.settings.setting_keys import FIELDS
from metadata_topic.settings.topic_settings import (
    ARCHIVE_KEY,
    DURABLE_KEY,
    ENABLE_KEY,
    LATENCY_BOUND_KEY,
    PACK_KEY,
    POLICY_KEY,
    UPLOAD_WAIT_KEY,
    WAL_RETENTION_KEY,
    LinkPolicy,
    TopicSettings,
)
from plugin.azure_blob import AzureBlobSettings
from plugin.clients.backend_settings import ObjectBackendSettings, RemoteBackendSettings
from plugin.gcs import GcsSettings
from plugin.loading import ARCHIVE_IMPL_PREFIX, IMPL_PREFIX
from plugin.local_directory import LocalDirectorySettings
from plugin.s3 import S3Settings
from replication.wire.peer_connection import Address

Row = tuple[str, str, str, str]

_HEADER = ("key", "type", "default", "meaning")

_INTRODUCTION = """\
# Configuration

Generated from the code: `python -m agent.settings.configuration_doc > docs/configuration.md`.

All keys stand in the broker's own `server.properties`, which the agent reads at its start. An unmodified broker ignores
keys that it does not know. The agent refuses a wrong value, and a key that begins with `remote.wal.` or
`remote.log.wal.` and is not listed here: it ends and names the key. Of Kafka's own keys it reads `node.id`,
`log.dirs`, the listeners' keys and their `ssl.*`, `process.roles`, `broker.rack`, `replica.socket.timeout.ms`,
`socket.request.max.bytes`, `remote.log.storage.system.enable` and `remote.log.metadata.manager.listener.name`.

`${file:/path:key}`, `${dir:/path:file}` and `${env:NAME}` are resolved as Kafka does, by the providers that
`config.providers` names in the same file, with the agent's own rights and environment.

"KIP-1176" marks the keys that have their name from there. How to use them: [operations](operations.md).

## The keys that matter first

1. `remote.log.wal.storage.system.enable`
2. the store: `remote.log.wal.storage.manager.class.name`, `rsm.wal.config.bucket`
3. other agents: `remote.wal.agent.peer.listener`, `remote.wal.agent.peers`, `remote.wal.agent.ssl.certificate.file`
   with its key and authority; past dead ones, `remote.wal.agent.bypass`
4. Kafka: `remote.wal.agent.bootstrap.servers`, `remote.wal.agent.client.config`
5. monitoring: `remote.wal.agent.http.listener`
6. how much [recovery](recovery.md#how-much-comes-back) gives back: `remote.wal.retention.ms`
7. `remote.wal.agent.memory.bytes`
8. `remote.wal.link.policy` of a topic
"""

_BACKENDS = f"""\
## Storage manager

These keys have the prefix `{IMPL_PREFIX}`: `bucket` is
`{IMPL_PREFIX}bucket`. All agents of a cluster need the same store and the same `prefix`. The archive's keys
have the prefix `{ARCHIVE_IMPL_PREFIX}`.

With `remote.wal.buckets`, `bucket` or `directory` is taken from there for each zone, and stays for what was written
before. Any other key with `zone.<zone>.` in front, behind the prefix, is for that zone's bucket alone.
"""

_TOPICS = """\
## Topics

A broker refuses topic settings that it does not know. So `remote-wal topics` sets these, and keeps them in the
compacted topic `__remote_wal_topic_settings`; agents take a change up within seconds.
They belong to the topic's id: a topic that is created again under the name has the defaults. A topic without settings
of its own [inherits](operations.md#on-for-all-topics) those of a pattern, or of the brokers' files.
"""


def configuration_document() -> str:
    """Return the content of docs/configuration.md."""
    shared, remote = tuple(ObjectBackendSettings.model_fields), tuple(RemoteBackendSettings.model_fields)
    backends = (
        ("Every storage manager", _model_rows(ObjectBackendSettings)),
        ("`plugin.local_directory.LocalWalStorageManager`", _model_rows(LocalDirectorySettings, shared)),
        ("S3, Google Cloud Storage, Azure", _model_rows(RemoteBackendSettings, shared)),
        (
            "`plugin.s3.S3WalStorageManager` and `plugin.s3_express.S3ExpressWalStorageManager`",
            _model_rows(S3Settings, remote),
        ),
        ("`plugin.gcs.GcsWalStorageManager`", _model_rows(GcsSettings, remote)),
        ("`plugin.azure_blob.AzureBlobWalStorageManager`", _model_rows(AzureBlobSettings, remote)),
    )
    parts = [_INTRODUCTION, "## Agent\n", table(_HEADER, _rows(AgentSettings.documented())), _BACKENDS]
    for title, rows in backends:
        parts += [f"### {title}\n", table(_HEADER, rows)]
    return "\n".join([*parts, _TOPICS, table(_HEADER, _topic_rows())])


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the last cell of a row is prose without markup."""
    head = tuple(header)
    lines = [head, ("---",) * len(head), *((*cells, _prose(last)) for *cells, last in map(tuple, rows))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _prose(text: str) -> str:
    return re.sub(r"([|*_<])", r"\\\1", text)


def _rows(fields: Mapping[str, FieldInfo]) -> Iterator[Row]:
    for key, field in fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "(needed)" if field.is_required() else _code(_text(default))
        yield f"`{key}`", f"{_kind(field)}{_bounds(field)}", shown, field.description or ""


def _model_rows(model: type[BaseModel], without: Iterable[str] = ()) -> Iterator[Row]:
    fields = model.model_fields.items()
    return _rows({name.replace("_", "."): field for name, field in fields if name not in without})


def _topic_rows() -> Iterator[Row]:
    defaults = TopicSettings()
    meanings = {
        ENABLE_KEY: ("bool", _text(defaults.enable), "Whether the topic replicates through object storage."),
        POLICY_KEY: (
            ", ".join(LinkPolicy),
            defaults.link_policy.value,
            "When followers get links. `cost`: where they are cheaper than the bytes, unless they hold records back at "
            "producers; `always`: for every byte, whatever it costs. See operations.md.",
        ),
        LATENCY_BOUND_KEY: (
            "int",
            "",
            "For the policy cost: by how much links may hold records back at producers; upload and read must keep it, "
            "too. Default: the agent's own key of the same name, for producers alone.",
        ),
        UPLOAD_WAIT_KEY: (
            "int, 1 or more",
            "",
            "For the policy cost: how long records may wait for more to share an object; at most the agent's own key.",
        ),
        ARCHIVE_KEY: (
            "bool",
            _text(defaults.archive),
            "Whether the topic's records are merged into archive objects, by agents that have the archive on.",
        ),
        WAL_RETENTION_KEY: (
            "int, -2 or more",
            "",
            "How long its records are kept in combined segments. Default: the agent's own key; with one or two "
            "replicas -2, as long as the log.",
        ),
        DURABLE_KEY: (
            "bool",
            _text(defaults.durable),
            "Whether producers are answered only once their records are stored, by agents that hold answers "
            "(remote.wal.gateway.durable.listener).",
        ),
        PACK_KEY: ("bool", _text(defaults.pack), "Whether its records may be packed on their way to other zones."),
    }
    for key in FIELDS:
        kind, default, meaning = meanings[key]
        yield f"`{key}`", kind, _code(default), meaning


def _kind(field: FieldInfo) -> str:
    """Return what stands in the file, which for a user is not what the agent makes of it."""
    if any(getattr(item, "func", None) is parse_user for item in field.metadata):
        return "name or number"
    return _type_text(field.annotation)


def _bounds(field: FieldInfo) -> str:
    lowest, highest, shortest = (
        next((getattr(item, name) for item in field.metadata if hasattr(item, name)), None)
        for name in ("ge", "le", "min_length")
    )
    if shortest is not None:
        return f", {shortest} characters or more"
    if highest is not None:
        return f", {lowest} to {highest}"
    return "" if lowest is None else f", {lowest} or more"


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _type_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _type_text(next(kind for kind in get_args(annotation) if kind is not type(None)))
    named = {Address: "host:port", Path: "path", dict: "list", frozenset: "list", tuple: "list"}
    return named.get(get_origin(annotation) or annotation, str(annotation.__name__))


def _text(default: object) -> str:
    if default is None or default in ({}, frozenset(), ()):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(configuration_document())
