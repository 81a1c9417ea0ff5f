"""`remote-wal agent`: run the agent of one broker."""

from pathlib import Path
from typing import Annotated

import typer


def agent(
    broker_config: Annotated[
        Path, typer.Option(help="The broker's own server.properties.", exists=True, dir_okay=False, readable=True)
    ],
    log_format: Annotated[str, typer.Option(help="json, or console for people.")] = "json",
) -> None:
    """Run the agent of the broker with this configuration, until SIGTERM."""
    from cli.agent_start import start_agent

    start_agent(broker_config, log_format)
