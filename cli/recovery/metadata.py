"""`remote-wal metadata`: writes the metadata topic again after it was lost."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.option_groups import command_group, grouped
from cli.progress import Tell
from cli.recovery.recovery_sources import BrokersCluster, open_stores, patience_of, progress_to
from cli.tables import tell_json

if TYPE_CHECKING:
    from recovery.metadata.topic_rebuild import RebuildPlan

app = command_group("The metadata topic.")


@app.command()
@grouped
def rebuild(
    where: BrokersCluster,
    write: Annotated[bool, typer.Option("--write/--dry-run", help="Write it, or only tell what would be.")] = False,
    json: Json = False,
) -> None:
    """Tell the metadata topic of every stored object that it does not tell of, by snapshots and the objects themselves.

    For when the topic was deleted, made anew, or lost its end. Agents may run, and go on uploading; until the end of it
    they delete nothing that the topic does not tell of. Run it once, with any broker's settings. Exits with 1 when an
    object or every snapshot cannot be read (then the topic stays in doubt, so that nothing is deleted), or an object is
    lost: a snapshot knows it, it is not stored, and nothing says that its records are not wanted any more.
    """

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    plan, written = _rebuild(where, write, tell)
    code = ExitCode.FINDINGS if plan.lost or not plan.is_whole else ExitCode.GOOD
    if json:
        tell_json(_as_json(plan, written), code)
    else:
        typer.echo(_as_text(plan, written))
    raise typer.Exit(code)


def _rebuild(where: BrokersCluster, write: bool, tell: Tell) -> "tuple[RebuildPlan, int | None]":
    import time

    from metadata_topic.topic.consumer import STALLED_S
    from metadata_topic.topic.topic_session import TopicSession
    from plugin.wall_clock import wall_ms
    from recovery.cluster_view import read_tier
    from recovery.metadata.absent_objects import agents_judges
    from recovery.metadata.topic_rebuild import Known, Rebuild, read_snapshots

    with open_stores(where) as stores:
        storage, archive = stores.storage, stores.archive
        tell("reading snapshots")
        remembered = read_snapshots(storage, stores.cluster_id, progress_to(tell))
        if remembered.doubt:
            tell(remembered.doubt)
        tell("reading the metadata topic")
        broker = stores.broker
        with TopicSession(stores.client, broker.node_id, time.monotonic, broker.rack, tell=tell) as session:
            tier = partial(read_tier, stores.client, STALLED_S)
            judges = agents_judges(
                stores.client, broker.node_id, wall_ms, tier, stores.settings.process.state_directory
            )
            run = Rebuild(storage, archive, remembered, wall_ms, judges, progress_to(tell), patience_of(tell))
            tell("listing objects")
            plan = run.plan(Known(session.store, session.archive))
            tell(_summary(plan))
            return plan, run.write(session, plan) if write else None


def _as_json(plan: "RebuildPlan", written: int | None) -> dict[str, object]:
    return {
        "objects": plan.objects,
        "known": plan.known,
        "segments": len(plan.segments),
        "archive_objects": len(plan.archived),
        "deletions": len(plan.deletions),
        "registrations": len(plan.registrations),
        "declared_gaps": plan.declared_gaps,
        "bounds": plan.bounds,
        "from_footers": plan.from_footers,
        "bytes": plan.bytes,
        "gone": plan.gone,
        "lost": [str(one) for one in plan.lost],
        "unreadable": [{"key": item.key, "reason": item.reason} for item in plan.unreadable],
        "unread_snapshots": plan.unread_snapshots,
        "written": written,
    }


def _summary(plan: "RebuildPlan") -> str:
    return (
        f"{plan.objects:,} objects are stored, {plan.known:,} are known. To be told of: {len(plan.segments):,} "
        f"combined segments and {len(plan.archived):,} archive objects ({plan.from_footers:,} of both by footers), "
        f"{len(plan.deletions):,} deletions, {len(plan.registrations):,} agents, {plan.declared_gaps:,} declared "
        f"gaps, {plan.bounds:,} bounds of logs (where the upload began, or up to where records were released)"
    )


def _as_text(plan: "RebuildPlan", written: int | None) -> str:
    lines = [f"unreadable: {item.key}: {item.reason}" for item in plan.unreadable]
    lines += [f"lost: {one}: it is not stored, and nothing says that its records are not wanted" for one in plan.lost]
    if plan.lost:
        lines.append("Find out who deleted them before --write; leaders' agents then store again what their logs have")
    if plan.unread_snapshots:
        lines.append(f"unreadable: {plan.unread_snapshots}: newer declared gaps and released records are not known")
    end = "is whole" if plan.is_whole else "stays in doubt: read what is unreadable by a newer release, or delete it"
    done = f"{written:,} records written; the topic {end}" if written is not None else "nothing written: --write does"
    return "\n".join([*lines, done])
