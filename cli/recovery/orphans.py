"""`remote-wal orphans`: shows where object storage and metadata disagree."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BrokerConfig, Json
from cli.exit_code import ExitCode
from cli.progress import shown_progress
from cli.recovery.recovery_sources import BrokersCluster, open_metadata, open_stores
from cli.tables import show, table, tell_json

if TYPE_CHECKING:
    from plugin.segment_metadata import CombinedSegmentId
    from rlm.lifecycle.orphans import Comparison


def orphans(
    broker_config: BrokerConfig,
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
    found and not healed, or if a bucket did not answer.
    """
    from agent.settings.setting_types import milliseconds
    from metadata_topic.records.errors import MetadataTopicError
    from metadata_topic.topic.topic import METADATA_TOPIC
    from plugin.wall_clock import wall_ms
    from rlm.lifecycle.orphans import MetadataBehindError, OrphanTask

    with (
        shown_progress("reading the metadata topic") as tell,
        open_stores(BrokersCluster(broker_config)) as stores,
        open_metadata(stores, may_doubt=True) as topic,
    ):
        broker, ttl_ms = stores.broker, milliseconds(stores.settings.lifecycle.uncommitted_ttl_s)
        tell(f"listing the objects of broker {broker.node_id}")
        task = OrphanTask(
            stores.storage,
            topic.store,
            topic.read_to_end,
            ttl_ms,
            wall_ms,
            topic_doubt=lambda: "; ".join(topic.store.topic.doubts.values()),
        )
        try:
            found = task.compare([broker.node_id])[broker.node_id]
        except MetadataBehindError as error:
            raise MetadataTopicError("read", METADATA_TOPIC, str(error), "are the brokers up?") from error
        if confirm is not None and confirm != found.amount:
            raise typer.BadParameter(f"what is found now is {found.amount}, not {confirm}", param_hint="--confirm")
        healed = 0
        if heal:
            healed = len(task.heal(found, topic.publisher, confirm))
            topic.published()
    code = ExitCode.FINDINGS if len(found.disagreements) > healed or found.unanswered else ExitCode.GOOD
    if json:
        tell_json(_as_json(broker.node_id, found, healed), code)
    else:
        _print(broker.node_id, found, healed)
    raise typer.Exit(code)


def _as_json(broker_id: int, found: "Comparison[CombinedSegmentId]", healed: int) -> dict[str, object]:
    return {
        "broker_id": broker_id,
        "objects": found.objects,
        "young": found.young,
        "not_looked_for": found.not_looked_for,
        "unanswered_buckets": sorted(found.unanswered),
        "doubt": found.doubt,
        "waiting": len(found.waiting),
        "amount": found.amount,
        "healed": healed,
        "disagreements": [
            {
                "segment": str(item.object_id),
                "kind": item.kind.value,
                "size_bytes": item.size_bytes,
                "age_ms": item.age_ms,
                "writer_is_known": item.writer_is_known,
            }
            for item in found.disagreements
        ],
    }


def _print(broker_id: int, found: "Comparison[CombinedSegmentId]", healed: int) -> None:
    rows = [
        (item.object_id, item.kind.value, f"{item.size_bytes:,}", f"{item.age_ms // 1000:,} s")
        for item in found.disagreements
    ]
    title = f"Disagreements about the objects of broker {broker_id}"
    show(
        table("segment", "kind", ">bytes", ">age", rows=rows, title=title),
        f"{found.objects:,} objects, {found.young:,} too young to tell, {healed:,} healed",
    )
    if found.unanswered:
        show(f"Did not answer, so that nothing is said of what is there: {', '.join(sorted(found.unanswered))}.")
    if found.not_looked_for:
        show(f"{found.not_looked_for:,} finished segments were not looked for: their buckets are away, or unknown.")
    if found.doubt:
        show(f"Nothing is healed by itself: {found.doubt}.")
    if found.waiting:
        show(
            f"{len(found.waiting):,} wait for a word. If it is the metadata that was lost: remote-wal metadata "
            f"rebuild. To delete them, and their records with them: --heal --confirm {found.amount}"
        )
