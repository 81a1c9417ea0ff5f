"""Starts the agent of one broker: its settings, its log, its process."""

import atexit
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TextIO, cast

import structlog

from cli.log_lines import KAFKA_CLIENTS

if TYPE_CHECKING:
    from prometheus_client import Counter

    from agent.log_stream import LogStream

EACH_S: Final = 60.0
_MAX_KNOWN: Final = 1000

# librdkafka's client, its thread, and how long it took: "FAIL [agent-1#producer-2] [thrd:...]: ... (after 3ms ...)".
_OF_ONE_CLIENT: Final = re.compile(r"\[[^]#]+#\w+-\d+\]|\[thrd:[^]]*\]|\(after [^)]*\)|\d+ms\b")


def start_agent(broker_config: Path, log_format: str, overrides: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a broker's agent until SIGTERM; `overrides` replace keys of the file.

    Raises what `agent.process.run_agent` raises, and AgentSettingsError for wrong settings.
    """
    from agent.process import run_agent
    from agent.settings_file import read_settings_file

    stream, lost = log_to_stderr(console=log_format == "console")
    broker, settings = read_settings_file(broker_config, overrides)
    run_agent(broker, settings, lambda: read_settings_file(broker_config, overrides)[0], stream.drain, lost)


def log_to_stderr(console: bool) -> "tuple[LogStream, Counter]":
    """Log everything as structured lines, including what libraries log through `logging`.

    Returns the stream, and the count of lines that it lost.

    Repeated lines of Kafka's clients come once a minute. Tracebacks come without local variables, because these hold
    record bytes, and secrets.
    """
    from agent.log_stream import LogStream, RepeatedEvents, lost_lines

    lost = lost_lines()
    sys.stderr = stream = LogStream(sys.__stderr__.fileno() if sys.__stderr__ else 2, lost)
    atexit.register(stream.drain)
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
        processors=[RepeatedEvents(lost), *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(RepeatedLines(*KAFKA_CLIENTS))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    return stream, lost


class RepeatedLines(logging.Filter):
    """Lets each line through once in `EACH_S`, with the number of similar lines that were left out since.

    Lines are similar if they differ only in the client and in times. It uses the records' own time, so a clock that is
    set back lets a few lines too many through.
    """

    def __init__(self, *loggers: str) -> None:
        """Limit the lines of `REPEATED` loggers and of those below them; all others pass."""
        super().__init__()
        self._loggers = loggers
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged. `logging` may call it without the handler's lock: a count may be off by
        one."""
        if not record.name.startswith(self._loggers):
            return True
        message = record.getMessage()
        alike = f"{record.name} {_OF_ONE_CLIENT.sub('', message)}"
        if abs(record.created - self._last_s.get(alike, -EACH_S)) < EACH_S:
            self._left_out[alike] = self._left_out.get(alike, 0) + 1
            return False
        if len(self._last_s) >= _MAX_KNOWN:
            self._last_s.clear()
            self._left_out.clear()
        self._last_s[alike] = record.created
        if left_out := self._left_out.pop(alike, 0):
            record.msg, record.args = f"{message} ({left_out} lines like it were left out before)", ()
        return True
