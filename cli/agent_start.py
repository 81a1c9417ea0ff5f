"""Starts the agent of one broker: its settings, its log, its process."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from cli.log_lines import KAFKA_CLIENTS
from cli.repeated_lines import RepeatedLines


def start_agent(broker_config: Path, log_format: str, overrides: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run until SIGTERM; `overrides` replace the file's own settings.

    Raises the errors of `agent.process.run_agent`, and errors of wrong settings.
    """
    from agent.process import run_agent
    from agent.settings_file import read_settings_file

    log_to_stderr(console=log_format == "console")
    broker, settings = read_settings_file(broker_config, overrides)
    run_agent(broker, settings, lambda: read_settings_file(broker_config, overrides)[0])


def log_to_stderr(console: bool) -> None:
    """Log everything as structured lines, including what libraries log through `logging`.

    Repeated lines of Kafka's clients come once a minute. Tracebacks come without local variables, because these hold
    record bytes, and secrets.
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
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatedLines(*KAFKA_CLIENTS))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
