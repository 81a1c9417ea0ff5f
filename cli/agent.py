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
    from agent.process import run_agent
    from agent.settings_file import agent_settings
    from kafka_log.server_properties import load_broker_properties

    _log_to_stderr(console=log_format == "console")
    broker = load_broker_properties(broker_config)
    run_agent(broker, agent_settings(broker, broker_config))


def _log_to_stderr(console: bool) -> None:
    """Everything as structured lines, what libraries log by way of `logging` included."""
    import logging

    import structlog

    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
