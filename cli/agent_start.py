"""Starts the agent of one broker: its settings, its log, its process."""

import logging
import sys
from pathlib import Path

import structlog


def start_agent(broker_config: Path, log_format: str) -> None:
    """Run until SIGTERM. Raises what `agent.process.run_agent` does, and what is wrong with the settings."""
    from agent.process import run_agent
    from agent.settings_file import agent_settings
    from kafka_log.server_properties import load_broker_properties

    log_to_stderr(console=log_format == "console")
    broker = load_broker_properties(broker_config)
    run_agent(broker, agent_settings(broker, broker_config))


def log_to_stderr(console: bool) -> None:
    """Everything as structured lines, what libraries log by way of `logging` included.

    Tracebacks come without local variables: these hold record bytes, and secrets.
    """
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    tracebacks: structlog.typing.Processor = (
        structlog.processors.format_exc_info
        if console
        else structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    )
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        tracebacks,
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
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
