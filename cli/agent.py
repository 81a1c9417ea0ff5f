"""`remote-wal agent`: run the agent of one broker."""

import sys
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
    import structlog

    from agent.process import run_agent
    from agent.settings import agent_settings
    from kafka_log.server_properties import load_broker_properties

    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if log_format == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    broker = load_broker_properties(broker_config)
    run_agent(broker, agent_settings(broker, broker_config))
