"""Limits the log lines that Kafka's clients repeat for an unreachable broker, each client by itself."""

import logging
import re
from typing import Final

EACH_S: Final = 60.0
_MAX_KNOWN: Final = 1000

# librdkafka's client, its thread, and how long it took: "FAIL [agent-1#producer-2] [thrd:...]: ... (after 3ms ...)".
_OF_ONE_CLIENT: Final = re.compile(r"\[[^]#]+#\w+-\d+\]|\[thrd:[^]]*\]|\(after [^)]*\)|\d+ms\b")


class RepeatedLines(logging.Filter):
    """Lets each line through once in `EACH_S`, with the number of similar lines that were left out since.

    Lines are similar if they differ only in the client and in times. It uses the records' own time, so a clock that is
    set back lets a few lines too many through.
    """

    def __init__(self, *loggers: str) -> None:
        """Limit lines of these loggers, and those below them; other lines pass."""
        super().__init__()
        self._loggers = loggers
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one record. `logging` may call it without the handler's lock: a count may be off by a line."""
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
