"""`remote-wal orphans`: where object storage and metadata disagree."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Json

if TYPE_CHECKING:
    from rlm.orphans import Comparison


def orphans(
    broker_config: Annotated[
        Path,
        typer.Option(
            help="The broker's own server.properties; its objects are looked at.", exists=True, dir_okay=False
        ),
    ],
    heal: Annotated[bool, typer.Option("--heal/--dry-run", help="Put right what is found, or only show it.")] = False,
    json: Json = False,
) -> None:
    """Hold the list of a broker's objects against the metadata: objects that nobody knows, segments that are lost.

    Healing starts the deletion of unknown objects, which the broker's agent finishes after its grace time, and takes
    lost segments out of the metadata. Exits with 1 if something was found and not healed.
    """
    from agent.orphan_check import OrphanCheck
    from agent.settings_file import agent_settings
    from kafka_log.server_properties import load_broker_properties

    broker = load_broker_properties(broker_config)
    with OrphanCheck(broker, agent_settings(broker, broker_config)) as check:
        found = check.compare()
        healed = check.heal(found) if heal else 0
    if json:
        typer.echo(json_format.dumps(_as_json(broker.node_id, found, healed)))
    else:
        _print(broker.node_id, found, healed)
    if len(found.disagreements) > healed:
        raise typer.Exit(1)


def _as_json(broker_id: int, found: "Comparison", healed: int) -> dict[str, object]:
    return {
        "broker_id": broker_id,
        "objects": found.objects,
        "young": found.young,
        "metadata_is_doubtful": found.metadata_is_doubtful,
        "healed": healed,
        "disagreements": [
            {
                "segment": str(item.combined_segment_id),
                "kind": item.kind.value,
                "size_bytes": item.size_bytes,
                "age_ms": item.age_ms,
            }
            for item in found.disagreements
        ],
    }


def _print(broker_id: int, found: "Comparison", healed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("segment", "kind", title=f"Disagreements about the objects of broker {broker_id}")
    for column in ("bytes", "age"):
        table.add_column(column, justify="right")
    for item in found.disagreements:
        table.add_row(
            str(item.combined_segment_id), item.kind.value, f"{item.size_bytes:,}", f"{item.age_ms // 1000:,} s"
        )
    console.print(table)
    console.print(f"{found.objects:,} objects, {found.young:,} too young to tell, {healed:,} healed")
    if found.metadata_is_doubtful:
        console.print("Most objects have no metadata: it is the metadata that seems to be lost. Nothing is healed.")
