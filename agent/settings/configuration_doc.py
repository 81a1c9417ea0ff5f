"""Makes docs/configuration.md: `python -m agent.settings.configuration_doc > docs/configuration.md`."""

import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.settings.agent_settings import AgentSettings
from metadata_topic.settings.topic_settings import (
    ARCHIVE_KEY,
    DURABLE_KEY,
    ENABLE_KEY,
    LATENCY_BOUND_KEY,
    POLICY_KEY,
    UPLOAD_WAIT_KEY,
    WAL_RETENTION_KEY,
    LinkPolicy,
    TopicSettings,
)
from plugin.azure_blob import AzureBlobSettings
from plugin.clients.backend_settings import ObjectBackendSettings
from plugin.gcs import GcsSettings
from plugin.loading import DEFAULT_ARCHIVE_IMPL_PREFIX, DEFAULT_IMPL_PREFIX
from plugin.local_directory import LocalDirectorySettings
from plugin.s3 import S3Settings
from replication.wire.peer_connection import Address

Row = tuple[str, str, str, str]

_HEADER = ("key", "type", "default", "meaning")

_INTRODUCTION = """\
# Configuration

Generated from the code: `python -m agent.settings.configuration_doc > docs/configuration.md`.

All keys stand in the broker's own `server.properties`, which the agent reads at its start; an unmodified broker passes
over keys that it does not know. A key that begins with `remote.wal.` or `remote.log.wal.` and is not listed here is
refused, and so is a wrong value: the agent ends and names the key. Of Kafka's own keys the agent reads `node.id` (or
`broker.id`), `log.dirs`, `listeners`, `advertised.listeners`, `listener.security.protocol.map`,
`inter.broker.listener.name`, `controller.listener.names`, `process.roles`, `broker.rack`,
`replica.socket.timeout.ms`, `socket.request.max.bytes`, `remote.log.storage.system.enable` and
`remote.log.metadata.manager.listener.name`, where the inter-broker listener speaks TLS its `ssl.*`, and some others
that `remote-wal doctor` judges by.

In all of these keys, in those of storage managers and in `remote.wal.agent.client.config`, `${file:/path:key}`,
`${dir:/path:file}` and `${env:NAME}` are resolved as Kafka does, by the providers that `config.providers` names in the
same file; the environment is the agent's own. What none of them has, or a provider of another class would have, is
refused in keys that the agent reads. So the agent's unit needs the rights and variables that the broker's has.

"KIP-1176" marks the keys that have their name from there. How to use them stands in [operations](operations.md).
"""

_BACKENDS = f"""\
## Storage manager

These keys have the prefix that `remote.log.wal.storage.manager.impl.prefix` says, `{DEFAULT_IMPL_PREFIX}` by default:
`bucket` is `{DEFAULT_IMPL_PREFIX}bucket`. Every agent of a cluster must be given the same store and the same `prefix`,
as a follower's agent reads what a leader's agent wrote.

With `remote.wal.buckets`, the key that names the place (`bucket`, `directory`) is taken from there for each zone, and
stays for what was written before there was a list. Any other key with `zone.<zone>.` in front, behind the prefix, is
for that zone's bucket alone.

The archive's storage manager takes the same keys under the prefix that
`remote.wal.archive.storage.manager.impl.prefix` says, `{DEFAULT_ARCHIVE_IMPL_PREFIX}` by default.
"""

_TOPICS = """\
## Topics

An unmodified broker refuses topic settings that it does not know. So these are set by `remote-wal topics enable` and
kept in the compacted topic `__remote_wal_topic_settings`; running agents take a change up within seconds.
They belong to a topic by its id: one that is made anew under the name begins with the defaults.
"""


def configuration_document() -> str:
    """Return the whole file."""
    shared = tuple(ObjectBackendSettings.model_fields)
    backends = (
        ("Every storage manager", _model_rows(ObjectBackendSettings)),
        ("`plugin.local_directory.LocalWalStorageManager`", _model_rows(LocalDirectorySettings, shared)),
        (
            "`plugin.s3.S3WalStorageManager` and `plugin.s3_express.S3ExpressWalStorageManager`",
            _model_rows(S3Settings, shared),
        ),
        ("`plugin.gcs.GcsWalStorageManager`", _model_rows(GcsSettings, shared)),
        ("`plugin.azure_blob.AzureBlobWalStorageManager`", _model_rows(AzureBlobSettings, shared)),
    )
    parts = [_INTRODUCTION, "## Agent\n", table(_HEADER, _rows(AgentSettings.documented())), _BACKENDS]
    for title, rows in backends:
        parts += [f"### {title}\n", table(_HEADER, rows)]
    return "\n".join([*parts, _TOPICS, table(_HEADER, _topic_rows())])


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; the last cell of a row is prose without markup."""
    head = tuple(header)
    lines = [head, ("---",) * len(head), *((*cells, _prose(last)) for *cells, last in map(tuple, rows))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _prose(text: str) -> str:
    return re.sub(r"([|*_<])", r"\\\1", text)


def _rows(fields: Mapping[str, FieldInfo]) -> Iterator[Row]:
    for key, field in fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "(needed)" if field.is_required() else _code(_text(default))
        yield f"`{key}`", f"{_type_text(field.annotation)}{_bounds(field)}", shown, field.description or ""


def _model_rows(model: type[BaseModel], without: Iterable[str] = ()) -> Iterator[Row]:
    fields = model.model_fields.items()
    return _rows({name.replace("_", "."): field for name, field in fields if name not in without})


def _topic_rows() -> Iterator[Row]:
    defaults = TopicSettings()
    meanings = (
        (ENABLE_KEY, "bool", _text(defaults.enable), "Whether the topic replicates through object storage."),
        (
            POLICY_KEY,
            ", ".join(LinkPolicy),
            defaults.link_policy.value,
            "When followers get links. `cost`: where they are cheaper than the bytes; `latency`: where they are "
            "cheaper and upload and read stay within the latency bound; `always`: for every byte, whatever it costs. "
            "By `always` all producers with acks=all wait for a PUT and a GET in each round, and those that send many "
            "small requests (librdkafka) a round for each request, as a broker answers one Produce request of a "
            "connection at a time: up to seconds.",
        ),
        (LATENCY_BOUND_KEY, "int", "", "For the policy latency. Default: the agent's own key of the same name."),
        (
            UPLOAD_WAIT_KEY,
            "int, 1 or more",
            "",
            "For the policy cost: how long what was appended may wait for more to share an object. The agent's own key "
            "of the same name bounds it.",
        ),
        (
            ARCHIVE_KEY,
            "bool",
            _text(defaults.archive),
            "Whether the topic's records are merged into archive objects, by agents that have the archive on.",
        ),
        (
            WAL_RETENTION_KEY,
            "int, -2 or more",
            "",
            "How long its records are kept in combined segments. Default: the agent's own key of the same name; with "
            "one or two replicas -2, the local retention.",
        ),
        (
            DURABLE_KEY,
            "bool",
            _text(defaults.durable),
            "Whether producers are answered only once their records are stored, by agents that hold answers "
            "(remote.wal.gateway.durable.listener). They are kept for the local retention then, by default.",
        ),
    )
    for key, kind, default, meaning in meanings:
        yield f"`{key}`", kind, _code(default), meaning


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
    if get_origin(annotation) in (Union, types.UnionType):
        return _type_text(next(kind for kind in get_args(annotation) if kind is not type(None)))
    named = {Address: "host:port", Path: "path", dict: "list", frozenset: "list"}
    return named.get(get_origin(annotation) or annotation, str(annotation.__name__))


def _text(default: object) -> str:
    if default is None or default in ({}, frozenset()):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(configuration_document())
