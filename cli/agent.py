"""`remote-wal agent`: run the agent of one broker."""

from typing import Annotated

import typer

from cli.connection import BrokerConfig


def agent(
    broker_config: BrokerConfig,
    log_format: Annotated[str, typer.Option(help="json, or console for people.")] = "json",
) -> None:
    """Run the agent of the broker with this configuration, until SIGTERM."""
    from cli.agent_start import start_agent

    start_agent(broker_config, log_format)
