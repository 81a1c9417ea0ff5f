"""`remote-wal demo`: watch a cluster replicate through object storage, and check that it keeps every record."""

from typing import Annotated

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.extras import need_extra
from cli.tables import tell_json
from local_cluster.object_store.store_spec import OwnStore


def demo(
    store: Annotated[
        OwnStore, typer.Option(help="A directory, or a native S3 server (needs Go), on this machine.")
    ] = OwnStore.LOCAL,
    quick: Annotated[bool, typer.Option("--quick", help="About two minutes, with less of everything.")] = False,
    json: Json = False,
) -> None:
    """Run three Kafka brokers with agents, write, break things, and show what it cost.

    Takes some three minutes and needs nothing but this machine. Exits with 1 if a record was lost or came out of
    order, or if replicas differ.
    """
    need_extra("demo")
    from rich.console import Console

    from demo.plan import plan_for
    from demo.presentation import PAGE_WIDTH, Progress, show_introduction, show_report
    from demo.run import run_demo
    from local_cluster.processes import ends_what_it_started

    console = Console(stderr=json)
    if not console.is_terminal:
        console = Console(stderr=json, width=PAGE_WIDTH)
    show_introduction(console, store)
    try:
        with ends_what_it_started(), Progress(console) as progress:
            report = run_demo(plan_for(store, quick=quick), store, progress)
            progress.end()
    except KeyboardInterrupt:
        console.print("interrupted: brokers, agents and data are gone")
        raise typer.Exit(130) from None
    show_report(console, report)
    code = ExitCode.FINDINGS if report.broken_promises else ExitCode.GOOD
    if json:
        tell_json(report.to_document(), code)
    raise typer.Exit(code)
