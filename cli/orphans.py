"""`remote-wal orphans`: where object storage and metadata disagree."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Json

if TYPE_CHECKING:
    from rlm.lifecycle.orphans import Comparison


def orphans(
    broker_config: Annotated[
        Path,
        typer.Option(
            help="The broker's own server.properties; its objects are looked at.", exists=True, dir_okay=False
        ),
    ],
    heal: Annotated[bool, typer.Option("--heal/--dry-run", help="Put right what is found, or only show it.")] = False,
    confirm: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="With --heal: put right what waits for a word, too. AMOUNT says how much is found, as it was shown.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Hold the list of a broker's objects against the metadata: objects that nobody knows, segments that are lost.

    Healing starts the deletion of unknown objects, which the broker's agent finishes after its grace time, and takes
    lost segments out of the metadata. What may be all that is left of the records waits for --confirm: objects whose
    writer the metadata does not know either, more than a small share of the objects, and everything while the metadata
    topic is in doubt. Look whether `remote-wal metadata rebuild` is what you want first. Exits with 1 if something was
    found and not healed.
    """
    from agent.orphan_check import OrphanCheck
    from agent.settings_file import agent_settings
    from kafka_log.server_properties import load_broker_properties

    broker = load_broker_properties(broker_config)
    with OrphanCheck(broker, agent_settings(broker, broker_config)) as check:
        found = check.compare()
        if confirm is not None and confirm != found.amount:
            raise typer.BadParameter(f"what is found now is {found.amount}, not {confirm}", param_hint="--confirm")
        healed = check.heal(found, confirm) if heal else 0
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
        "doubt": found.doubt,
        "waiting": len(found.waiting),
        "amount": found.amount,
        "healed": healed,
        "disagreements": [
            {
                "segment": str(item.combined_segment_id),
                "kind": item.kind.value,
                "size_bytes": item.size_bytes,
                "age_ms": item.age_ms,
                "writer_is_known": item.writer_is_known,
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
    if found.doubt:
        console.print(f"Nothing is healed by itself: {found.doubt}.")
    if found.waiting:
        console.print(
            f"{len(found.waiting):,} wait for a word. If it is the metadata that was lost: remote-wal metadata "
            f"rebuild. To delete them, and their records with them: --heal --confirm {found.amount}"
        )
